/* SPDX-License-Identifier: Apache-2.0 */

/*
 * GPU memory and several users: descriptors are handed over between processes of one user, and of
 * users whom a rule lets exchange them, whether the keeper made the memory or the publisher serves
 * it.
 */

#include "tests/gpu/harness_gpu_stream.h"

#if DLX_TEST_HAS_GPU
#include "client/subscribe/subscription.h"
#include "tests/harness/file.h"
#include "tests/harness/fork.h"
#include "tests/harness/user.h"

#define ALICE 64001
#define BOB   64002
#define CAROL 64003

#define N 16

static void serve_both(void *userdata)
{
    (void)userdata;
    dlx_test_daemon_exec(&dlx_test_stream_daemon,
                         DLX_TEST_WORDS("--allow-user", "64001", "--allow-user", "64002"));
}

static void begin(void (*serve)(void *userdata))
{
    ck_assert_int_eq(dlx_test_daemon_stop(&dlx_test_stream_daemon), 0);
    dlx_test_daemon_start_prepared(&dlx_test_stream_daemon, serve, NULL);
}

static char config_path[300];

static void serve_config(void *userdata)
{
    (void)userdata;
    dlx_test_daemon_exec(&dlx_test_stream_daemon, DLX_TEST_WORDS("--config", config_path));
}

static void begin_with(const char *config)
{
    (void)snprintf(config_path, sizeof config_path, "%s/dlpackd.conf", dlx_test_stream_daemon.dir);
    dlx_test_write_file(config_path, config);
    begin(serve_config);
}

/* The user may use the GPU, but not search the folders above the file of the stand-in. */
static void become(uid_t uid)
{
    (void)dlx_test_gpu_context(0);
    dlx_test_user_become(uid);
}

/* A process of that user that publishes a message with memory that the keeper made, and memory that
 * it serves, and waits to be killed. */
static pid_t publish_as(uid_t uid, const char *topic)
{
    static struct dlx_test_gpu_segment segment;
    struct dlx_test_child child = dlx_test_fork_child();
    if (child.pid == 0) {
        become(uid);
        struct dlx_publisher *p =
            dlx_test_stream_publisher(dlx_test_stream_connect(), topic, PUBLISHER(.history = 4));
        dlx_test_gpu_segment_make(&segment, 1, DLX_TEST_GPU_CHUNK,
                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        dlx_test_gpu_fill(segment.base, DLX_TEST_GPU_CHUNK, 2);
        struct dlx_item items[] = {{"kept", dlx_test_gpu_alloc(p, N, 1)},
                                   {"served", dlx_test_gpu_tensor_at(segment.base, 1, N)}};
        ok(dlx_publish_set(p, items, 2, NULL, PUBLISH(.strict = true), NULL));
        dlx_test_fork_ready(&child);
    }
    return dlx_test_fork_wait_ready(&child);
}

/* A process of that user that joins, and opens both tensors: the code, in a child's exit status. */
static int open_as(uid_t uid, const char *topic)
{
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        become(uid);
        struct dlx_subscription *s =
            dlx_test_stream_subscribe(dlx_test_stream_connect(), topic, SUBSCRIBE(.history = 4));
        struct dlx_message *m = dlx_test_stream_next(s);
        int codes[2];
        for (uint32_t i = 0; i < 2; i++) {
            DLManagedTensorVersioned *t = NULL;
            codes[i] = dlx_message_tensor(m, i, &t);
            if (codes[i] == 0)
                dlx_test_gpu_check(t, N, i + 1);
        }
        _exit(codes[0] == codes[1] ? -codes[0] : 255);
    }
    return -dlx_test_fork_status(pid);
}

GPU_TEST(memory_is_handed_over_within_one_user, 0)
{
    if (!dlx_test_user_may())
        return;
    begin(serve_both);
    pid_t alice = publish_as(ALICE, "test/alice"), root = publish_as(0, "test/root");
    ck_assert_int_eq(open_as(ALICE, "test/alice"), 0);
    ck_assert_int_eq(open_as(BOB, "test/alice"), DLX_E_ACCESS);
    ck_assert_int_eq(open_as(0, "test/alice"), DLX_E_ACCESS);
    ck_assert_int_eq(open_as(BOB, "test/root"), DLX_E_ACCESS);
    ck_assert_int_eq(open_as(0, "test/root"), 0);
    dlx_test_fork_kill(alice);
    dlx_test_fork_kill(root);
}

/* A process of that user that joins: is the publisher of its user, as far as it knows? */
static bool is_of_user(uid_t uid, const char *topic)
{
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        dlx_test_user_become(uid);
        struct dlx_subscription *s =
            dlx_test_stream_subscribe(dlx_test_stream_connect(), topic, SUBSCRIBE(.history = 4));
        (void)dlx_test_stream_next(s);
        bool is = false;
        for (uint32_t i = 0; i < s->n_links; i++)
            is |= s->links[i]->publisher != 0 && s->links[i]->stream_wait_ns == DLX_FOREVER;
        _exit(is);
    }
    return dlx_test_fork_status(pid) != 0;
}

/* Streams wait for it without a limit. */
GPU_TEST(a_subscription_knows_which_publishers_are_of_its_user, 0)
{
    if (!dlx_test_user_may())
        return;
    begin(serve_both);
    pid_t alice = publish_as(ALICE, "test/alice"), root = publish_as(0, "test/root");
    ck_assert(is_of_user(ALICE, "test/alice"));
    ck_assert(!is_of_user(BOB, "test/alice"));
    ck_assert(!is_of_user(0, "test/alice"));
    ck_assert(!is_of_user(BOB, "test/root"));
    ck_assert(is_of_user(0, "test/root"));
    dlx_test_fork_kill(alice);
    dlx_test_fork_kill(root);
}

/* Bob may exchange it on one topic, Carol on none, and Alice on both. */
GPU_TEST(memory_is_handed_over_between_users_whom_a_rule_lets, 0)
{
    if (!dlx_test_user_may())
        return;
    begin_with("[rule trust]\nusers = 64001 64002\ntopics = test/shared\nallow = gpu\n"
               "[rule alice]\nusers = 64001\ntopics = **\nallow = gpu\n"
               "[rule all]\nusers = 64001 64002 64003\ntopics = **\nallow = all\n");
    pid_t shared = publish_as(ALICE, "test/shared"), own = publish_as(ALICE, "test/own");
    ck_assert_int_eq(open_as(BOB, "test/shared"), 0);
    ck_assert_int_eq(open_as(BOB, "test/own"), DLX_E_ACCESS);
    ck_assert_int_eq(open_as(CAROL, "test/shared"), DLX_E_ACCESS);
    ck_assert_int_eq(open_as(0, "test/shared"), DLX_E_ACCESS);
    dlx_test_fork_kill(shared);
    dlx_test_fork_kill(own);
    ck_assert_int_eq(unlink(config_path), 0);
}

#endif

GPU_MAIN(dlx_test_gpu_stream_case("keep_users"))
