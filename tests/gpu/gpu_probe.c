/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Is there a GPU that NVIDIA's driver lets us use? Prints its name, the driver's version of CUDA
 * and the number of GPUs, a line each; or why not, and ends with status 77. The program needs
 * nothing but a C compiler, so that tools/check-gpu can ask before it builds anything.
 *
 *   gpu_probe [LIBRARY]    libcuda.so.1 unless said otherwise
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NO_GPU 77

static void *library;

static void resolve(const char *name, void *ret)
{
    void *p = dlsym(library, name);
    if (!p) {
        (void)printf("the driver has no %s\n", name);
        exit(NO_GPU);
    }
    memcpy(ret, &p, sizeof p);
}

int main(int argc, char **argv)
{
    int (*init)(unsigned), (*count)(int *), (*version)(int *), (*name)(char *, int, int);
    int (*error_name)(int, const char **);
    const char *text = NULL;
    char device[256] = "a GPU without a name";
    int n = 0, v = 0;

    library = dlopen(argc > 1 ? argv[1] : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        (void)printf("%s\n", dlerror());
        return NO_GPU;
    }
    resolve("cuInit", &init);
    resolve("cuDeviceGetCount", &count);
    resolve("cuDriverGetVersion", &version);
    resolve("cuDeviceGetName", &name);
    resolve("cuGetErrorName", &error_name);
    int r = init(0);
    if (r == 0)
        r = count(&n);
    if (r != 0) {
        (void)error_name(r, &text);
        (void)printf("cuInit: %s (%d)\n", text ? text : "an error without a name", r);
        return NO_GPU;
    }
    if (n == 0) {
        (void)printf("the driver sees no GPU\n");
        return NO_GPU;
    }
    (void)version(&v);
    (void)name(device, sizeof device, 0);
    (void)printf("%s\n%d.%d\n%d\n", device, v / 1000, v % 1000 / 10, n);
    return 0;
}
