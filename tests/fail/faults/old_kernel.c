/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Runs a program on a kernel that lacks something: a seccomp filter answers the very calls that ask
 * for it as an older kernel would. The program's children live there, too.
 *
 *     old_kernel FEATURE[,FEATURE...] PROGRAM [ARGUMENT...]
 *     old_kernel --list
 */

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

enum { ANY, EQUAL, HAS }; /* how the argument is compared */

struct feature {
    const char *name;
    int nr;
    int how;
    int argument; /* index */
    uint32_t value;
    int error;
};

static const struct feature features[] = {
    {"peerpidfd", SYS_getsockopt, EQUAL, 2, 77, ENOPROTOOPT},         /* Linux 6.5 */
    {"passrights", SYS_setsockopt, EQUAL, 2, 83, ENOPROTOOPT},        /* 6.16 */
    {"noexec-seal", SYS_memfd_create, HAS, 1, 8, EINVAL},             /* 6.3 */
    {"populate", SYS_madvise, EQUAL, 2, MADV_POPULATE_WRITE, EINVAL}, /* 5.14 */
    {"future-write", SYS_fcntl, HAS, 2, 0x10, EINVAL},                /* 5.1 */
    {"pidfd-open", SYS_pidfd_open, ANY, 0, 0, ENOSYS},                /* 5.3 */
    {"memfd", SYS_memfd_create, ANY, 0, 0, ENOSYS},                   /* 3.17, or a sandbox */
    {"wipeonfork", SYS_madvise, EQUAL, 2, MADV_WIPEONFORK, EINVAL},   /* 4.14 */
    {"getrandom", SYS_getrandom, ANY, 0, 0, ENOSYS},                  /* 3.17 */
    {"clone3", SYS_clone3, ANY, 0, 0, ENOSYS},                        /* 5.3 */
    {"close-range", SYS_close_range, ANY, 0, 0, ENOSYS},              /* 5.9 */
};
#define N_FEATURES (sizeof features / sizeof *features)

/* The instructions of a feature, which are jumped over unless everything fits. */
static size_t add(struct sock_filter *code, const struct feature *f)
{
    const uint32_t at = (uint32_t)offsetof(struct seccomp_data, args) + 8 * (uint32_t)f->argument;
    struct sock_filter *c = code;
    const uint8_t body = f->how == ANY ? 1 : 3; /* after the look at the number */
    /* F_ADD_SEALS and no other fcntl(). */
    const int is_fcntl = f->nr == SYS_fcntl;
    *c++ =
        (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    *c++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)f->nr, 0,
                                        (uint8_t)(body + (is_fcntl ? 2 : 0)));
    if (is_fcntl) {
        *c++ = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                                            offsetof(struct seccomp_data, args) + 8);
        *c++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 1033, 0, body);
    }
    if (f->how != ANY) {
        *c++ = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at);
        *c++ = (struct sock_filter)BPF_JUMP(
            BPF_JMP | (f->how == EQUAL ? BPF_JEQ : BPF_JSET) | BPF_K, f->value, 0, 1);
    }
    *c++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)f->error);
    return (size_t)(c - code);
}

static const struct feature *find(const char *name)
{
    for (size_t i = 0; i < N_FEATURES; i++)
        if (strcmp(features[i].name, name) == 0)
            return &features[i];
    return NULL;
}

/* Checks the answer of the filter, with arguments that the kernel itself would refuse in another
 * way, or not at all. */
static int check(const struct feature *f)
{
    unsigned long args[5] = {f->how == ANY ? 0 : (unsigned long)-1, 0, 0, 0, 0};
    if (f->nr == SYS_madvise)
        args[0] = 0;
    if (f->nr == SYS_fcntl)
        args[1] = 1033;
    args[f->argument] = f->value;
    errno = 0;
    return syscall(f->nr, args[0], args[1], args[2], args[3], args[4]) == -1 && errno == f->error;
}

int main(int argc, char **argv)
{
    const struct feature *chosen[N_FEATURES];
    size_t n_chosen = 0;
    struct sock_filter code[N_FEATURES * 8 + 1];
    size_t n = 0;
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (size_t i = 0; i < N_FEATURES; i++)
            puts(features[i].name);
        return 0;
    }
    if (argc < 3) {
        (void)fprintf(stderr, "usage: old_kernel FEATURE[,FEATURE...] PROGRAM [ARGUMENT...]\n");
        return 2;
    }
    for (char *name = strtok(argv[1], ","); name; name = strtok(NULL, ",")) {
        const struct feature *f = find(name);
        if (!f || n_chosen == N_FEATURES) {
            (void)fprintf(stderr, "old_kernel: no feature %s\n", name);
            return 2;
        }
        chosen[n_chosen++] = f;
        n += add(code + n, f);
    }
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {.len = (unsigned short)n, .filter = code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0) {
        perror("old_kernel: seccomp");
        return 77;
    }
    for (size_t i = 0; i < n_chosen; i++) {
        if (!check(chosen[i])) {
            (void)fprintf(stderr, "old_kernel: %s is there all the same\n", chosen[i]->name);
            return 2;
        }
    }
    (void)execv(argv[2], argv + 2);
    perror(argv[2]);
    return 127;
}
