/* SPDX-License-Identifier: Apache-2.0 */

/*
 * How much more shared memory there is than the messages need. Sizes are log-uniform from 4 KiB to
 * 64 MiB. A subscription of the same process holds messages of --live bytes in all and gives one of
 * them back, picked at random, as often as it takes for the next to fit. After --warmup messages
 * the largest that memory and live payload became over --n messages are printed. The payload is not
 * touched. Memory is looked at after each publish and each take, in two ways: `arena_bytes`, what
 * the publisher says that its arenas have, and `resident_bytes`, the pages of all memfds of dlpackd
 * that this process maps or the daemon (of pid --daemon) has open: what the machine has to spare
 * for it.
 */

#include "measure_dlx.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define N_HELD_MAX 4000

struct live {
    DLManagedTensorVersioned *tensors[N_HELD_MAX];
    size_t sizes[N_HELD_MAX];
    size_t n;
    size_t bytes;
};

static uint64_t random_state;

static uint64_t random64(void) /* splitmix64 */
{
    uint64_t z = random_state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static size_t random_size(void)
{
    double x = (double)(random64() >> 11) * 0x1p-53;

    return (size_t)exp2(12 + 14 * x);
}

static void drop(struct live *l)
{
    size_t i = random64() % l->n;

    l->tensors[i]->deleter(l->tensors[i]);
    l->bytes -= l->sizes[i];
    l->n--;
    l->tensors[i] = l->tensors[l->n];
    l->sizes[i] = l->sizes[l->n];
}

static void publish(struct dlx_publisher *p, size_t size)
{
    int64_t shape[1];
    const struct dlx_tensor_spec spec = bm_bytes(shape, size);
    DLManagedTensorVersioned *t;

    bm_check(dlx_alloc(p, &spec, &t), "dlx_alloc");
    bm_check(dlx_publish(p, t, NULL, NULL), "dlx_publish");
}

static void take(struct live *l, struct dlx_subscription *s, size_t size)
{
    struct dlx_message *m = bm_take(s);
    bm_check(dlx_message_tensor(m, 0, &l->tensors[l->n]), "dlx_message_tensor");
    dlx_message_unref(m);
    l->sizes[l->n++] = size;
    l->bytes += size;
}

/* ---- memory that is there ------------------------------------------------------------------ */

#define NAME        "/memfd:dlx-"
#define N_FILES_MAX 8192

/* Files that were counted, each once. */
struct files {
    ino_t inodes[N_FILES_MAX];
    size_t n;
    size_t bytes;
};

static void count_file(struct files *f, const struct stat *st)
{
    for (size_t i = 0; i < f->n; i++)
        if (f->inodes[i] == st->st_ino)
            return;
    if (f->n == N_FILES_MAX)
        bm_fail("more than %d regions", N_FILES_MAX);
    f->inodes[f->n++] = st->st_ino;
    f->bytes += (size_t)st->st_blocks * 512;
}

/* The mappings of this process: "7f01a000-7f02b000 r--s 00000000 00:01 1036 /memfd:dlx-arena
 * (deleted)". */
static void count_mapped(struct files *f)
{
    static char line[4096];
    FILE *maps = fopen("/proc/self/maps", "re");

    bm_check_errno(maps ? 0 : -1, "/proc/self/maps");
    while (fgets(line, sizeof line, maps)) {
        char path[64], *end;
        struct stat st;
        if (!strstr(line, NAME))
            continue;
        /* The entry of a mapping leads to its file, which has no other name. */
        (void)snprintf(path, sizeof path, "/proc/self/map_files/%.*s", (int)strcspn(line, " "),
                       line);
        if (stat(path, &st) == 0) {
            count_file(f, &st);
            continue;
        }
        /* Without the right to look there: none of its pages can be missing. */
        unsigned long from = strtoul(line, &end, 16), to = strtoul(end + 1, &end, 16);
        st.st_blocks = (blkcnt_t)((to - from) / 512);
        char *at = end;
        for (int i = 0; i < 4; i++)
            at = strchr(at + 1, ' ');
        st.st_ino = strtoul(at, NULL, 10);
        count_file(f, &st);
    }
    (void)fclose(maps);
}

static void count_open(struct files *f, long daemon)
{
    char path[64], target[64];
    const struct dirent *entry;

    (void)snprintf(path, sizeof path, "/proc/%ld/fd", daemon);
    DIR *fds = opendir(path);
    bm_check_errno(fds ? 0 : -1, path);
    while ((entry = readdir(fds))) {
        struct stat st;
        ssize_t n = readlinkat(dirfd(fds), entry->d_name, target, sizeof target - 1);
        if (n < 0)
            continue;
        target[n] = '\0';
        if (strncmp(target, NAME, strlen(NAME)) == 0 &&
            fstatat(dirfd(fds), entry->d_name, &st, 0) == 0)
            count_file(f, &st);
    }
    (void)closedir(fds);
}

static size_t resident_bytes(long daemon)
{
    static struct files files;

    files.n = files.bytes = 0;
    count_mapped(&files);
    count_open(&files, daemon);
    return files.bytes;
}

/* ---- peaks --------------------------------------------------------------------------------- */

struct peak {
    size_t arenas, resident, live;
};

static void look(struct peak *peak, struct dlx_publisher *p, long daemon)
{
    size_t arenas = (size_t)bm_publisher_stats(p).arena_bytes;
    size_t resident = resident_bytes(daemon);

    peak->arenas = arenas > peak->arenas ? arenas : peak->arenas;
    peak->resident = resident > peak->resident ? resident : peak->resident;
}

int main(int argc, char **argv)
{
    static struct live live;
    const struct dlx_publisher_args publisher_args = {
        .size = sizeof publisher_args,
        .history = 1,
        .depth = 4096,
    };
    const struct dlx_subscribe_args subscribe_args = {
        .size = sizeof subscribe_args,
        .max_held = 4096,
    };
    struct dlx_publisher *p;
    struct dlx_subscription *s;
    char topic[64];
    struct peak peak = {0};

    bm_init(argc, argv);
    size_t n = (size_t)bm_long("n", 10000), n_warmup = (size_t)bm_long("warmup", 3000);
    size_t target = (size_t)bm_long("live", 1 << 30);
    long daemon = bm_long("daemon", 0);
    random_state = (uint64_t)bm_long("seed", 1);
    struct dlx_client *c = bm_connect();
    bm_check(dlx_publisher_new(c, bm_topic("memory", getpid(), topic), &publisher_args, &p), topic);
    bm_check(dlx_subscribe(c, topic, &subscribe_args, &s), topic);
    uint64_t began = bm_now_ns();
    for (size_t i = 0; i < n_warmup + n; i++) {
        size_t size = random_size();
        while (live.n && (live.bytes + size > target || live.n == N_HELD_MAX))
            drop(&live);
        bool counts = i >= n_warmup;
        publish(p, size);
        if (counts)
            look(&peak, p, daemon);
        take(&live, s, size);
        if (!counts)
            continue;
        look(&peak, p, daemon);
        peak.live = live.bytes > peak.live ? live.bytes : peak.live;
    }
    uint64_t ns = bm_now_ns() - began;
    struct dlx_publisher_stats stats = bm_publisher_stats(p);
    bm_json_begin();
    bm_json_number("ratio", (double)peak.resident / (double)peak.live);
    bm_json_number("arena_ratio", (double)peak.arenas / (double)peak.live);
    bm_json_number("resident_bytes", (double)peak.resident);
    bm_json_number("arena_bytes", (double)peak.arenas);
    bm_json_number("live_bytes", (double)peak.live);
    bm_json_number("arenas", stats.n_arenas);
    bm_json_number("copied_bytes", (double)stats.copied_bytes);
    bm_json_number("message_ms", (double)ns * 1e-6 / (double)(n_warmup + n));
    bm_json_end();
    while (live.n)
        drop(&live);
    dlx_subscription_unref(s);
    dlx_publisher_unref(p);
    dlx_client_unref(c);
    return 0;
}
