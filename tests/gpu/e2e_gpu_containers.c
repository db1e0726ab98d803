/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tensors on GPUs between containers that share the daemon's folder and the GPU (on the stand-in:
 * the file of its machine): descriptors pass, by the keeper, and handles that mean something in one
 * pid namespace alone fail with words that say what to do.
 */

#include "tests/gpu/harness_gpu_stream.h"

#if DLX_TEST_HAS_GPU
#include "tests/harness/container.h"

#define N 16

static void serve_users(void *userdata)
{
    (void)userdata;
    dlx_test_daemon_exec(&dlx_test_stream_daemon,
                         DLX_TEST_WORDS("--allow-user", "64001", "--allow-user", "64002"));
}

/* Everybody may use the GPU. */
static bool begin(void (*prepare)(void *userdata))
{
    if (!dlx_test_container_may())
        return false;
    ck_assert_int_eq(chmod(getenv("STANDIN_MACHINE"), 0666), 0);
    ck_assert_int_eq(dlx_test_daemon_stop(&dlx_test_stream_daemon), 0);
    dlx_test_daemon_start_prepared(&dlx_test_stream_daemon, prepare, NULL);
    return true;
}

static struct dlx_test_container run(uid_t uid, dlx_test_container_role *role)
{
    return dlx_test_container_start(&dlx_test_stream_daemon, uid, role);
}

/* Runs it until it says a word. */
static struct dlx_test_container run_until_word(uid_t uid, dlx_test_container_role *role)
{
    struct dlx_test_container container = run(uid, role);
    (void)dlx_test_container_hear(container.sock);
    return container;
}

static void run_to_end(uid_t uid, dlx_test_container_role *role)
{
    struct dlx_test_container container = run(uid, role);
    dlx_test_container_join(&container);
}

/* Says the word that it waits for, and waits for its end. */
static void end(struct dlx_test_container *container)
{
    dlx_test_container_say(container->sock, 0);
    dlx_test_container_join(container);
}

/* Say a word, and wait for one. */
static void turn(int sock)
{
    dlx_test_container_say(sock, 0);
    (void)dlx_test_container_hear(sock);
}

static const struct dlx_publisher_args retain_2 = {.size = sizeof retain_2, .retain = 2};
static const struct dlx_publish_args strict = {.size = sizeof strict, .strict = true};

/* Both messages are ready when the word is said: a publisher that dies then leaves them whole. */
static void publish_two(int sock)
{
    auto_gpu_end x = dlx_test_gpu_publisher(&retain_2);
    for (uint32_t i = 1; i <= 2; i++)
        ok(dlx_publish(x.p, dlx_test_gpu_alloc(x.p, N, i), &strict, NULL));
    dlx_test_gpu_wait_ready(&x, 2);
    turn(sock);
}

static void take_two(int sock)
{
    (void)sock;
    auto_gpu_end x = dlx_test_gpu_subscriber(NULL);
    dlx_test_gpu_expect(&x, 0, N, 1);
    dlx_test_gpu_expect(&x, 0, N, 2);
}

/* Not by accident, but for the reason that is meant. */
static void be_refused_two(int sock)
{
    (void)sock;
    auto_gpu_end x = dlx_test_gpu_subscriber(NULL);
    DLManagedTensorVersioned *t;
    auto_message *m = dlx_test_stream_next(x.s);
    fails(dlx_message_tensor(m, 0, &t), DLX_E_ACCESS, "only the same user");
}

static void check_two(uid_t publisher, uid_t subscriber_uid, dlx_test_container_role *role)
{
    struct dlx_test_container p = run_until_word(publisher, publish_two);
    for (int i = 0; i < 2; i++)
        run_to_end(subscriber_uid, role);
    end(&p);
}

static const uid_t users[] = {0, DLX_TEST_ALICE};

GPU_LOOP_TEST(tensors_of_dlx_alloc_pass_between_containers_of_one_user, 0, 2, 0)
{
    if (begin(serve_users))
        check_two(users[_i], users[_i], take_two);
}

GPU_TEST(a_container_of_another_user_gets_no_descriptors, 0)
{
    if (begin(serve_users))
        check_two(DLX_TEST_ALICE, DLX_TEST_BOB, be_refused_two);
}

GPU_TEST(tensors_pass_where_the_daemon_is_in_a_container, 0)
{
    if (begin(dlx_test_container_enter))
        check_two(0, 0, take_two);
}

enum fate { ENDS, IS_KILLED };

GPU_LOOP_TEST(a_container_that_comes_late_gets_retained_tensors, ENDS, IS_KILLED + 1, 0)
{
    if (!begin(serve_users))
        return;
    struct dlx_test_container p = run_until_word(0, publish_two);
    if (_i == IS_KILLED)
        dlx_test_container_kill(&p);
    else
        end(&p);
    run_to_end(0, take_two);
}

static void publish_around_a_restart(int sock)
{
    auto_gpu_end x = dlx_test_gpu_publisher(&retain_2);
    ok(dlx_publish(x.p, dlx_test_gpu_alloc(x.p, N, 1), &strict, NULL));
    turn(sock);
    ok(dlx_publisher_wait(x.p, 0, 0));
    ok(dlx_publish(x.p, dlx_test_gpu_alloc(x.p, N, 2), &strict, NULL));
    turn(sock);
}

GPU_TEST(a_container_that_comes_late_gets_tensors_of_before_the_restart, 0)
{
    if (!begin(serve_users))
        return;
    struct dlx_test_container p = run_until_word(0, publish_around_a_restart);
    dlx_test_daemon_kill(&dlx_test_stream_daemon);
    dlx_test_daemon_start_prepared(&dlx_test_stream_daemon, serve_users, NULL);
    turn(p.sock);
    run_to_end(0, take_two);
    end(&p);
}

/* The driver opens no memory of cudaMalloc in the process that has it: it is where it is. */
static void check_own(struct dlx_test_gpu_end *x, uint32_t value)
{
    DLManagedTensorVersioned *mine = dlx_test_gpu_tensor(0, 1, N, value);
    const void *at = mine->dl_tensor.data;
    ok(dlx_publish(x->p, mine, &strict, NULL));
    auto_tensor *t = dlx_test_gpu_take_tensor(x);
    ck_assert_ptr_eq(t->dl_tensor.data, at);
    dlx_test_gpu_check(t, N, value);
}

static int count(const struct dlx_publisher_info *info, void *userdata)
{
    (void)info;
    ++*(int *)userdata;
    return 0;
}

/* Until the next daemon knows both ends, and on. */
static void take_own(int sock)
{
    auto_gpu_end x = dlx_test_gpu_both(NULL);
    int n = 0;
    check_own(&x, 1);
    turn(sock);
    for (uint32_t i = 2; n == 0; i++) {
        check_own(&x, i);
        (void)dlx_list_publishers(x.c, "gpu/a", count, &n);
    }
    check_own(&x, 100);
}

/* Also when another container has a process with the same pid, and one where the daemon is. */
GPU_LOOP_TEST(a_process_in_a_container_knows_its_own_tensors, 0, 2, 0)
{
    void (*prepare)(void *userdata) = _i == 0 ? serve_users : dlx_test_container_enter;
    if (!begin(prepare))
        return;
    struct dlx_test_container x = run_until_word(0, take_own);
    if (_i == 0)
        dlx_test_daemon_kill(&dlx_test_stream_daemon);
    else
        dlx_test_container_kill_daemon(&dlx_test_stream_daemon);
    dlx_test_daemon_start_prepared(&dlx_test_stream_daemon, prepare, NULL);
    end(&x);
}

static void publish_malloc(int sock)
{
    auto_gpu_end x = dlx_test_gpu_publisher(NULL);
    dlx_test_container_say(sock, 0);
    ok(dlx_publisher_wait(x.p, 1, PATIENCE));
    ok(dlx_publish(x.p, dlx_test_gpu_tensor(0, 1, N, 7), &strict, NULL));
    (void)dlx_test_container_hear(sock);
}

static void be_advised(int sock)
{
    auto_gpu_end x = dlx_test_gpu_subscriber(NULL);
    DLManagedTensorVersioned *t;
    struct dlx_message *m = dlx_test_stream_next(x.s);
    fails(dlx_message_tensor(m, 0, &t), DLX_E_SYSTEM, dlx__gpu_kind_text(dlx_test_gpu_ipc()));
    contains(dlx_errmsg(), "in another container");
    contains(dlx_errmsg(), "dlx_alloc()");
    dlx_message_unref(m);
    dlx_test_container_say(sock, 0);
}

/* Both are pid 1, which the driver takes for one process, or one is pid 2. */
/* Question E7 of tests/gpu/facts is about these handles with NVIDIA's driver. */
GPU_LOOP_TEST(memory_of_cudaMalloc_is_refused_between_containers_with_advice, 0, 2,
              DLX_TEST_GPU_CHOICE)
{
    if (!begin(serve_users))
        return;
    struct dlx_test_container p = run_until_word(0, publish_malloc);
    struct dlx_test_container s =
        _i == 0 ? run(0, be_advised)
                : dlx_test_container_start_second(&dlx_test_stream_daemon, 0, be_advised);
    (void)dlx_test_container_hear(s.sock);
    dlx_test_container_join(&s);
    end(&p);
}

int main(void)
{
    /* tools/check-gpu counts stories that passed: those that say SKIP themselves are not to be. */
    if (!dlx_test_gpu_is_standin() && !dlx_test_container_may())
        return dlx_test_run(suite_create("containers"));
    return dlx_test_run_case(dlx_test_gpu_stream_case("containers"));
}

#else

DLX_TEST_GPU_SKIP_MAIN("the stand-in for NVIDIA's driver was not built")

#endif
