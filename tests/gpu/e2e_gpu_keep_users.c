/* SPDX-License-Identifier: Apache-2.0 */

/*
 * GPU memory and several users: descriptors are handed over between processes of one user, and of
 * users whom a rule lets exchange them. Memory of a hostile user holds up only its own publisher.
 */

#include "gpu/lib/keep.h"
#include "gpu/lib/receive.h"
#include "client/publish/publisher.h"
#include "client/subscribe/subscription.h"
#include "tests/harness/file.h"
#include "tests/harness/fork.h"
#include "tests/harness/fuse.h"
#include "tests/harness/keeper.h"
#include "tests/harness/stream.h"
#include "tests/harness/user.h"
#include <grp.h>

#define ALICE 64001
#define BOB   64002
#define CAROL 64003

static struct dlx_gpu_handle sent;

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

/* A process of that user that shares `sent`, publishes a message, and waits to be killed. */
static pid_t publish_as(uid_t uid, const char *topic)
{
    struct dlx_test_child child = dlx_test_fork_child();
    if (child.pid == 0) {
        struct dlx_gpu_keep *keep = NULL;
        dlx_test_user_become(uid);
        struct dlx_publisher *p =
            dlx_test_stream_publisher(dlx_test_stream_connect(), topic, PUBLISHER(.history = 4));
        if (dlx__gpu_keep_put(p->client, p->id, &keep, &sent) != 1)
            _exit(1);
        dlx_test_stream_publish(p, 10, 1);
        dlx_test_fork_ready(&child);
    }
    return dlx_test_fork_wait_ready(&child);
}

/* A process of that user that joins, and fetches allocation 7: the code, in a child's exit
 * status. */
static int fetch_as(uid_t uid, const char *topic)
{
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        struct dlx_gpu_handle got = {0};
        dlx_test_user_become(uid);
        struct dlx_client *c = dlx_test_stream_connect();
        struct dlx_subscription *s = dlx_test_stream_subscribe(c, topic, SUBSCRIBE(.history = 4));
        (void)dlx_test_stream_next(s);
        int r = 1;
        for (uint32_t i = 0; i < s->n_links; i++)
            if (s->links[i]->publisher != 0)
                r = dlx__message_gpu_fetch(c, s->links[i], 7, &got);
        _exit(-r);
    }
    return -dlx_test_fork_status(pid);
}

TEST(memory_is_handed_over_within_one_user)
{
    if (!dlx_test_user_may())
        return;
    begin(serve_both);
    dlx_test_keeper_handle(&sent, 7, 2);
    pid_t alice = publish_as(ALICE, "test/alice"), root = publish_as(0, "test/root");
    ck_assert_int_eq(fetch_as(ALICE, "test/alice"), 0);
    ck_assert_int_eq(fetch_as(BOB, "test/alice"), DLX_E_ACCESS);
    ck_assert_int_eq(fetch_as(0, "test/alice"), DLX_E_ACCESS);
    ck_assert_int_eq(fetch_as(BOB, "test/root"), DLX_E_ACCESS);
    ck_assert_int_eq(fetch_as(0, "test/root"), 0);
    dlx_test_fork_kill(alice);
    dlx_test_fork_kill(root);
    dlx__gpu_handle_deinit(&sent);
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
TEST(a_subscription_knows_which_publishers_are_of_its_user)
{
    if (!dlx_test_user_may())
        return;
    begin(serve_both);
    dlx_test_keeper_handle(&sent, 7, 2);
    pid_t alice = publish_as(ALICE, "test/alice"), root = publish_as(0, "test/root");
    ck_assert(is_of_user(ALICE, "test/alice"));
    ck_assert(!is_of_user(BOB, "test/alice"));
    ck_assert(!is_of_user(0, "test/alice"));
    ck_assert(!is_of_user(BOB, "test/root"));
    ck_assert(is_of_user(0, "test/root"));
    dlx_test_fork_kill(alice);
    dlx_test_fork_kill(root);
    dlx__gpu_handle_deinit(&sent);
}

/* Bob may exchange it on one topic, Carol on none, and Alice on both. */
TEST(memory_is_handed_over_between_users_whom_a_rule_lets)
{
    if (!dlx_test_user_may())
        return;
    begin_with("[rule trust]\nusers = 64001 64002\ntopics = test/shared\nallow = gpu\n"
               "[rule alice]\nusers = 64001\ntopics = **\nallow = gpu\n"
               "[rule all]\nusers = 64001 64002 64003\ntopics = **\nallow = all\n");
    dlx_test_keeper_handle(&sent, 7, 2);
    pid_t shared = publish_as(ALICE, "test/shared"), own = publish_as(ALICE, "test/own");
    ck_assert_int_eq(fetch_as(BOB, "test/shared"), 0);
    ck_assert_int_eq(fetch_as(BOB, "test/own"), DLX_E_ACCESS);
    ck_assert_int_eq(fetch_as(CAROL, "test/shared"), DLX_E_ACCESS);
    ck_assert_int_eq(fetch_as(0, "test/shared"), DLX_E_ACCESS);
    dlx_test_fork_kill(shared);
    dlx_test_fork_kill(own);
    dlx__gpu_handle_deinit(&sent);
    ck_assert_int_eq(unlink(config_path), 0);
}

/* The file's server does not answer. The daemon never has its descriptor, and the keeper's other
 * holders, and its router, have nothing to do with it. */
TEST(a_file_that_blocks_holds_up_nobody_else)
{
    struct dlx_test_fuse fuse;
    struct dlx_gpu_handle honest;
    if (!dlx_test_user_may())
        return;
    begin(serve_both);
    dlx_test_keeper_handle(&honest, 7, 2);
    sent = honest;
    pid_t bob = publish_as(BOB, "test/bob");
    pid_t keeper = dlx_test_keeper_find(dlx_test_stream_daemon.path);
    if (dlx_test_fuse_start(&fuse)) {
        dlx_test_keeper_handle(&sent, 7, 1);
        dlx__close(sent.chunks[0].fd);
        sent.chunks[0].fd = dlx__steal_fd(&fuse.fd);
        pid_t alice = publish_as(ALICE, "test/alice");
        dlx_test_keeper_wait_children(keeper, 2);
        dlx__gpu_handle_deinit(&sent); /* or processes that are made here would have it, too */
        sent = honest;
        dlx_test_fuse_mute(&fuse);
        /* The publisher and its holder end, and wait for the file system meanwhile. */
        ck_assert_int_eq(kill(alice, SIGKILL), 0);
        dlx_test_fuse_wait(&fuse.asked->flush);
        for (int i = 0; i < 3; i++)
            ck_assert_int_eq(fetch_as(BOB, "test/bob"), 0);
        dlx_test_fork_kill(publish_as(BOB, "test/more"));
        dlx_test_fuse_end(&fuse);
        ck_assert_int_eq(waitpid(alice, NULL, 0), alice);
    }
    ck_assert_int_eq(fetch_as(BOB, "test/bob"), 0);
    dlx_test_fork_kill(bob);
    dlx__gpu_handle_deinit(&honest);
    dlx_test_keeper_wait_children(keeper, 0);
}
