/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Stands in for libFuzzer: hands files to a fuzz target, without arguments all of
 * tests/fuzz/corpus/<target>. So whatever was found once is tried with every compiler and
 * sanitizer.
 */

#include "tests/fuzz/harness_fuzz.h"
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

__attribute__((weak)) int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    return 0;
}

static size_t n_files;

static void replay_file(const char *path, size_t size)
{
    uint8_t *data = malloc(size + 1);
    FILE *file = fopen(path, "rb");
    if (!data || !file || fread(data, 1, size, file) != size) {
        perror(path);
        exit(1);
    }
    (void)fclose(file);
    if (getenv("DLX_REPLAY_VERBOSE"))
        (void)fprintf(stderr, "%s\n", path);
    /* A copy of exactly that size, so that one byte more is a fault. */
    uint8_t *exact = malloc(size);
    if (size > 0 && !exact)
        exit(1);
    if (size > 0)
        memcpy(exact, data, size);
    (void)LLVMFuzzerTestOneInput(exact, size);
    free(exact);
    free(data);
    n_files++;
}

static void replay(const char *path)
{
    struct stat st;
    char name[4096];
    if (stat(path, &st) < 0) {
        perror(path);
        exit(1);
    }
    if (!S_ISDIR(st.st_mode)) {
        replay_file(path, (size_t)st.st_size);
        return;
    }
    DIR *dir = opendir(path);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        if (entry->d_name[0] == '.')
            continue;
        (void)snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        replay(name);
    }
    if (dir)
        (void)closedir(dir);
}

int main(int argc, char **argv)
{
    char path[4096];
    const char *name = strrchr(argv[0], '/'), *srcdir = getenv("SRCDIR");
    (void)LLVMFuzzerInitialize(&argc, &argv);
    for (int i = 1; i < argc; i++)
        replay(argv[i]);
    if (argc == 1) {
        name = strstr(name ? name : argv[0], "fuzz_");
        (void)snprintf(path, sizeof path, "%s/tests/fuzz/corpus/%s", srcdir ? srcdir : ".",
                       name ? name + strlen("fuzz_") : "");
        replay(path);
    }
    (void)printf("%zu inputs\n", n_files);
    return n_files > 0 ? 0 : 1;
}
