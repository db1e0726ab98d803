/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/harness_gpu.h"

#if DLX_TEST_HAS_GPU
#include "tests/harness/fork.h"
#include "tests/gpu/harness_gpu_driver.h"
#include "tests/harness/patience.h"
#include <dlfcn.h>
#include <dlpack/dlpack.h>
#include <libgen.h>
#include <sys/prctl.h>

struct dlx_test_driver cu;
struct dlx_test_standin standin;

static char machine_path[300];
static void *library;

const char *dlx_test_gpu_folder(void)
{
    static char folder[600];
    const char *build = getenv("BUILD");
    char self[512];
    if (build) {
        (void)snprintf(folder, sizeof folder, "%s/tests/standin", build);
        return folder;
    }
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    ck_assert_int_gt(n, 0);
    self[n] = '\0';
    (void)snprintf(folder, sizeof folder, "%s/standin", dirname(self));
    return folder;
}

void dlx_test_gpu_machine(int n_devices)
{
    char number[16];
    const char *tmp = getenv("TMPDIR");
    (void)snprintf(machine_path, sizeof machine_path, "%s/machine-XXXXXX", tmp ? tmp : "/tmp");
    int fd = mkstemp(machine_path);
    ck_assert_int_ge(fd, 0);
    (void)close(fd);
    (void)snprintf(number, sizeof number, "%d", n_devices);
    ck_assert_int_eq(setenv("STANDIN_MACHINE", machine_path, 1), 0);
    /* As a driver of DLX_TEST_GPU_DRIVER the stand-in has as many as its environment says. */
    if (dlx_test_gpu_is_standin())
        ck_assert_int_eq(setenv("STANDIN_DEVICES", number, 1), 0);
}

void dlx_test_gpu_machine_end(void)
{
    ck_assert_int_eq(unlink(machine_path), 0);
    (void)unsetenv("STANDIN_MACHINE");
    if (dlx_test_gpu_is_standin())
        (void)unsetenv("STANDIN_DEVICES");
}

void *dlx_test_gpu_symbol(const char *name)
{
    return dlsym(library, name);
}

/* For any arguments: an older driver lacks the function, and stories see that the call fails. */
static CUresult absent(void)
{
    return CUDA_ERROR_NOT_FOUND;
}

/* The arguments that cuda.h declares, whatever cuGetProcAddress would find for a newer caller. */
static void resolve_call(const char *name, void *ret)
{
    void *p = dlx_test_gpu_symbol(name);
    CUresult (*other)(void) = absent;
    ck_assert_msg(p || !dlx_test_gpu_is_standin(), "the stand-in has no %s", name);
    if (!p)
        memcpy(&p, &other, sizeof p);
    memcpy(ret, &p, sizeof p);
}

/* NULL in NVIDIA's driver. */
static void resolve_control(const char *name, void *ret)
{
    void *p = dlx_test_gpu_symbol(name);
    ck_assert_msg(p || !dlx_test_gpu_is_standin(), "the stand-in has no %s", name);
    memcpy(ret, &p, sizeof p);
}

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)

bool dlx_test_gpu_is_hip(void)
{
    const char *backend = getenv("DLX_TEST_GPU_BACKEND");
    return backend && strcmp(backend, "hip") == 0;
}

int dlx_test_gpu_type(void)
{
    return dlx_test_gpu_is_hip() ? kDLROCM : kDLCUDA;
}

uint64_t dlx_test_gpu_stream_waits(void)
{
    return dlx_test_gpu_is_hip() ? 1 : 0;
}

DLDevice dlx_test_gpu_device(int i)
{
    return (DLDevice){(DLDeviceType)dlx_test_gpu_type(), i};
}

/* The keeper of a daemon that is started from here finds the stand-in. */
static void let_others_find_it(void)
{
    const char *before = getenv("LD_LIBRARY_PATH"), *folder = dlx_test_gpu_folder();
    char path[2000];
    if (before && strncmp(before, folder, strlen(folder)) == 0)
        return;
    (void)snprintf(path, sizeof path, "%s:%s", folder, before ? before : "");
    ck_assert_int_eq(setenv("LD_LIBRARY_PATH", path, 1), 0);
}

void dlx_test_gpu_load(void)
{
    char path[700];
    const char *driver = getenv("DLX_TEST_GPU_DRIVER");
    /* A kernel that is loaded with its first launch would wait for streams that are blocked. */
    ck_assert_int_eq(setenv("CUDA_MODULE_LOADING", "EAGER", 0), 0);
    if (driver)
        (void)snprintf(path, sizeof path, "%s", driver);
    else
        (void)snprintf(path, sizeof path, "%s/libcuda.so.1", dlx_test_gpu_folder());
    if (!driver)
        let_others_find_it();
    library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    ck_assert_msg(library != NULL, "%s", dlerror());
    if (dlx_test_gpu_is_hip()) {
        (void)snprintf(path, sizeof path, "%s/libamdhip64.so.7", dlx_test_gpu_folder());
        ck_assert_msg(dlopen(path, RTLD_NOW | RTLD_GLOBAL) != NULL, "%s", dlerror());
    }
#define X(name, since, flags) resolve_call(TEXT(name), &cu.name);
    CALLS(X)
#undef X
#define X(type, name, parameters) resolve_control(#name, &standin.name);
    STANDIN_CONTROLS(X)
#undef X
}

struct dlx_test_gpu_peer dlx_test_gpu_start(void (*role)(int sock))
{
    int pair[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)close(pair[0]);
        role(pair[1]);
        exit(0);
    }
    (void)close(pair[1]);
    return (struct dlx_test_gpu_peer){.pid = pid, .sock = pair[0]};
}

static int wait_end(struct dlx_test_gpu_peer *peer)
{
    int status = -1;
    ck_assert_int_eq(waitpid(peer->pid, &status, 0), peer->pid);
    peer->pid = 0;
    (void)close(peer->sock);
    return status;
}

void dlx_test_gpu_join(struct dlx_test_gpu_peer *peer)
{
    int status = wait_end(peer);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the peer ended with %#x", status);
}

void dlx_test_gpu_kill(struct dlx_test_gpu_peer *peer)
{
    ck_assert_int_eq(kill(peer->pid, SIGKILL), 0);
    ck_assert(WIFSIGNALED(wait_end(peer)));
}

union control {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(int))];
};

void dlx_test_gpu_send(int sock, const void *bytes, size_t size, int borrow_fd)
{
    union control control = {.bytes = {0}};
    struct iovec io = {(void *)(uintptr_t)bytes, size};
    struct msghdr message = {.msg_iov = &io, .msg_iovlen = 1};
    if (borrow_fd >= 0) {
        message.msg_control = &control;
        message.msg_controllen = sizeof control;
        control.header = (struct cmsghdr){
            .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
        memcpy(CMSG_DATA(&control.header), &borrow_fd, sizeof borrow_fd);
    }
    ck_assert_int_eq(sendmsg(sock, &message, MSG_NOSIGNAL), (ssize_t)size);
}

int dlx_test_gpu_receive(int sock, void *ret, size_t size)
{
    union control control = {.bytes = {0}};
    struct iovec io = {ret, size};
    struct msghdr message = {
        .msg_iov = &io, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    struct pollfd readable = {.fd = sock, .events = POLLIN};
    int fd = -1;
    ck_assert_int_eq(poll(&readable, 1, PATIENCE_MS), 1);
    ck_assert_int_eq(recvmsg(sock, &message, MSG_CMSG_CLOEXEC), (ssize_t)size);
    if (message.msg_controllen >= CMSG_LEN(sizeof fd) && control.header.cmsg_type == SCM_RIGHTS)
        memcpy(&fd, CMSG_DATA(&control.header), sizeof fd);
    return fd;
}

void dlx_test_gpu_tell(int sock)
{
    dlx_test_gpu_send(sock, "", 1, -1);
}

void dlx_test_gpu_await(int sock)
{
    char byte;
    (void)dlx_test_gpu_receive(sock, &byte, 1);
}

void dlx_test_gpu_turn(int sock)
{
    dlx_test_gpu_tell(sock);
    dlx_test_gpu_await(sock);
}

CUcontext dlx_test_gpu_context(int device)
{
    CUcontext context;
    CU_OK(cu.cuInit(0));
    CU_OK(cu.cuDevicePrimaryCtxRetain(&context, device));
    CU_OK(cu.cuCtxSetCurrent(context));
    return context;
}

CUcontext dlx_test_gpu_own_context(int device)
{
    CUcontext context;
    CU_OK(cu.cuInit(0));
#if CUDA_VERSION < 13000
    CU_OK(cu.cuCtxCreate(&context, 0, device));
#else
    CU_OK(cu.cuCtxCreate(&context, NULL, 0, device));
#endif
    return context;
}

CUmemAllocationProp dlx_test_gpu_prop(int device)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
}

CUmemGenericAllocationHandle dlx_test_gpu_create(size_t size)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = dlx_test_gpu_prop(0);
    CU_OK(cu.cuMemCreate(&handle, size, &prop, 0));
    return handle;
}

CUmemAccessDesc dlx_test_gpu_access(int device, CUmemAccess_flags flags)
{
    return (CUmemAccessDesc){.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                             .flags = flags};
}

CUdeviceptr dlx_test_gpu_map(CUmemGenericAllocationHandle handle, size_t size,
                             CUmemAccess_flags flags)
{
    CUdeviceptr address;
    CUmemAccessDesc access = dlx_test_gpu_access(0, flags);
    CU_OK(cu.cuMemAddressReserve(&address, size, 0, 0, 0));
    CU_OK(cu.cuMemMap(address, size, 0, handle, 0));
    CU_OK(cu.cuMemSetAccess(address, size, &access, 1));
    return address;
}

void dlx_test_gpu_unmap(CUdeviceptr address, size_t size)
{
    CU_OK(cu.cuMemUnmap(address, size));
    CU_OK(cu.cuMemAddressFree(address, size));
}

static void check_clean(void)
{
    for (int i = 0; i <= STANDIN_LAST_LIVE; i++) {
        enum standin_counter counter = (enum standin_counter)i;
        ck_assert_msg(standin.standin_count(counter) == 0, "%llu %s are left",
                      (unsigned long long)standin.standin_count(counter),
                      standin.standin_count_name(counter));
    }
    ck_assert_int_eq(standin.standin_open_fds(), 0);
}

static void start_standin(void)
{
    dlx_test_gpu_machine(2);
    dlx_test_gpu_load();
}

static void stop_standin(void)
{
    unsigned flags;
    int is_active = 0;
    /* The call fails in a test that did not initialise the driver. */
    (void)cu.cuDevicePrimaryCtxGetState(0, &flags, &is_active);
    if (is_active)
        CU_OK(cu.cuDevicePrimaryCtxRelease(0));
    check_clean();
    dlx_test_gpu_machine_end();
}

TCase *dlx_test_gpu_standin_case(const char *name)
{
    TCase *tcase = tcase_create(name);
    tcase_add_checked_fixture(tcase, start_standin, stop_standin);
    return tcase;
}

void dlx_test_gpu_end_context(int device)
{
    CU_OK(cu.cuDevicePrimaryCtxRelease(device));
    check_clean();
}

#endif
