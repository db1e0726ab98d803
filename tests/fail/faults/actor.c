/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The processes that tests/fail/faults/run kills, stops and lets fail:
 *
 *     actor publisher SOCKET
 *     actor a SOCKET          a reliable subscriber
 *     actor b SOCKET          one that is not, holds many messages, leaves and comes back
 *
 * A call that fails is told and made again: one fault costs at most an error. Standard output is a
 * line of JSON at the end, and `error` lines before. Exit status: 0 the story came to its end; 3
 * something that may not be; 4 errors without end; 5 nothing happens any more.
 */

#include "tests/fail/faults/actor.h"
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define ERRORS_MAX 200

struct fault_page *page;
const char *actor_name;
static struct fault_page own_page;
static unsigned n_errors;

/* ---- telling ------------------------------------------------------------------------------- */

/* Without stdio, which allocates. */
static void print(const char *fmt, va_list ap)
{
    char text[2048];
    int n = vsnprintf(text, sizeof text - 1, fmt, ap);
    if (n < 0)
        return;
    size_t size = (size_t)n < sizeof text - 2 ? (size_t)n : sizeof text - 2;
    text[size++] = '\n';
    for (size_t done = 0; done < size;) {
        ssize_t r = write(STDOUT_FILENO, text + done, size - done);
        if (r < 0 && errno != EINTR && errno != EAGAIN)
            return;
        done += r > 0 ? (size_t)r : 0;
    }
}

void actor_print(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    print(fmt, ap);
    va_end(ap);
}

void actor_wrong(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    print(fmt, ap);
    va_end(ap);
    _exit(3);
}

void actor_error(const char *what, int code)
{
    const char *text = dlx_client_errmsg(NULL);
    actor_print("error %s %s: %s", what, dlx_error_name(code), text);
    if (text[0] == '\0')
        actor_wrong("wrong: %s failed with %s and no words", what, dlx_error_name(code));
    if (++n_errors >= ERRORS_MAX) {
        actor_print("wrong: %u errors, and no end", n_errors);
        _exit(4);
    }
    if (n_errors > 3)
        (void)poll(NULL, 0, 10);
}

unsigned actor_n_errors(void)
{
    return n_errors;
}

void actor_mark(void)
{
    (void)getppid();
}

int64_t actor_now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * SECOND + t.tv_nsec;
}

/* ---- what it uses ---------------------------------------------------------------------------- */

/* Without faults of its own. */
struct actor_usage actor_usage(void)
{
    uint64_t fail_count = page->fail_count;
    page->fail_count = 0;
    struct actor_usage usage = {0};
    char line[512];
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d))
        usage.fds++;
    if (d)
        (void)closedir(d);
    FILE *f = fopen("/proc/self/maps", "re");
    while (f && fgets(line, sizeof line, f))
        usage.maps += strstr(line, "/memfd:dlx") || strstr(line, "/dev/shm/");
    if (f)
        (void)fclose(f);
    page->fail_count = fail_count;
    return usage;
}

struct dlx_client *actor_connect(const char *socket)
{
    const struct dlx_connect_args args = {
        .size = sizeof args, .socket = socket, .name = actor_name, .timeout_ns = 3 * SECOND};
    struct dlx_client *c = NULL;
    int r;
    while ((r = dlx_connect(&c, &args)) < 0) {
        actor_error("connect", r);
        (void)poll(NULL, 0, 20);
    }
    return c;
}

struct listing {
    uint32_t n;
    struct dlx_publisher_info *main;
};

static int on_publisher(const struct dlx_publisher_info *info, void *userdata)
{
    struct listing *listing = userdata;
    listing->n += !info->retained;
    if (listing->main && strcmp(info->topic, "faults/main") == 0 && info->pid == (uint32_t)getpid())
        *listing->main = *info;
    return 0;
}

uint32_t actor_n_publishers(struct dlx_client *c, struct dlx_publisher_info *ret_main)
{
    struct listing listing;
    int r;
    do {
        listing = (struct listing){.main = ret_main};
        r = dlx_list_publishers(c, "faults/*", on_publisher, &listing);
        if (r < 0)
            actor_error("list_publishers", r);
    } while (r < 0);
    return listing.n;
}

/* ---- content --------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static uint64_t word(uint64_t stream, int64_t i, uint32_t k, int64_t at)
{
    return mix(stream + ((uint64_t)i << 32) + ((uint64_t)k << 24) + (uint64_t)at);
}

uint32_t actor_n_tensors(int64_t i)
{
    return i % 11 == 5 || i >= LAST ? 3 : 1;
}

int64_t actor_words(int64_t i, uint32_t k)
{
    if (i <= LAST_BIG && k == 0 && i % 10 == 4)
        return 150000; /* 1.2 MB */
    if (i <= LAST_BIG && i % 5 == 2)
        return 9000;
    return 3 + (i * 7 + k) % 40;
}

void actor_fill(uint64_t *data, uint64_t stream, int64_t i, uint32_t k)
{
    int64_t n = actor_words(i, k);
    data[0] = stream;
    data[1] = (uint64_t)i;
    data[2] = k;
    for (int64_t at = 3; at < n; at++)
        data[at] = word(stream, i, k, at);
}

int64_t actor_check(const DLTensor *t, uint32_t k, uint64_t *ret_stream)
{
    if (!t || t->ndim != 1 || t->shape[0] < 3 || t->dtype.code != kDLUInt || t->dtype.bits != 64)
        actor_wrong("wrong: tensor %u of another shape or type", k);
    const uint64_t *data = t->data;
    int64_t i = (int64_t)data[1];
    if (data[2] != k || i < 1 || i > LAST + ENCORES || t->shape[0] != actor_words(i, k))
        actor_wrong("wrong: tensor %u says it is %" PRIu64 " of message %" PRId64 " with %" PRId64
                    " words",
                    k, data[2], i, t->shape[0]);
    for (int64_t at = 3; at < t->shape[0]; at++)
        if (data[at] != word(data[0], i, k, at))
            actor_wrong("wrong: torn: message %" PRId64 ", tensor %u, word %" PRId64, i, k, at);
    *ret_stream = data[0];
    return i;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    actor_name = argv[1];
    const char *fd = getenv(FAULT_PAGE_ENV);
    void *map = fd ? mmap(NULL, FAULT_PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, atoi(fd), 0)
                   : MAP_FAILED;
    page = map == MAP_FAILED ? &own_page : map;
    own_page.wanted = 2;
    if (strcmp(argv[1], "publisher") == 0)
        return actor_publish(argv[2]);
    if (strcmp(argv[1], "a") == 0 || strcmp(argv[1], "b") == 0)
        return actor_subscribe(argv[2], argv[1][0] == 'a');
    return 2;
}
