/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Parts of the daemon and of common/, with each of their calls of the C library failing once: what
 * was asked for is done nevertheless, or an error says why not; nothing is left, and the next one
 * succeeds.
 */

#include "common/memory.h"
#include "daemon/gpu/keeper.h"
#include "daemon/persist/handover.h"
#include "daemon/persist/manager_fds.h"
#include "daemon/server/listener.h"
#include "daemon/server/server.h"
#include "tests/fail/harness_fail.h"
#include "tests/gpu/harness_gpu.h"
#include "tests/harness/broker.h"
#include "tests/harness/daemon.h"
#include "tests/harness/fds.h"
#include "tests/harness/keeper.h"
#include "tests/harness/run.h"
#include <dirent.h>
#include <dlpack/dlpack.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/un.h>

static struct dlx_test_daemon place;

#define SIZE (UINT64_C(3) * DLX_PAGE)

/* Both ends of one region. */
static int live(const struct dlx_memory *memory)
{
    int ro = -1, writer = -1;
    void *map = NULL;
    const void *read_map = NULL;
    uint64_t size = 0;
    DLX_TEST_TRY(dlx__region_new(memory, "test", SIZE, &ro, &writer));
    int r = dlx__region_populate(memory, writer, SIZE, &map); /* closes it in any case */
    if (r == 0)
        r = dlx__region_prove(memory, ro, SIZE);
    if (r == 0)
        r = dlx__region_inspect(memory, ro, &size);
    if (r == 0)
        r = dlx__region_attach_borrowed(memory, ro, SIZE, &read_map);
    (void)dlx_test_fail_say(r);
    dlx__region_unmap(read_map, SIZE);
    dlx__region_unmap(map, SIZE);
    dlx__close(ro);
    return r;
}

static int live_region(int kind, struct dlx_test_fail *fail)
{
    const struct dlx_memory *memory = dlx__memory_by_tag((uint32_t)kind);
    ck_assert_ptr_nonnull(memory);
    dlx_test_fail(fail);
    int r = live(memory);
    dlx_test_fail(NULL);
    return r;
}

/* A region with two writers. */
static int share(const struct dlx_memory *memory)
{
    int ro = -1, writer = -1, one = -1, other = -1;
    uint64_t size = 0;
    DLX_TEST_TRY(dlx__region_new_shared(memory, "test", SIZE, &ro, &writer));
    dlx__close(writer);
    int r = dlx__region_inspect_shared(memory, ro, &size);
    if (r == 0)
        r = dlx__region_reopen_owned(ro, 1, &one);
    if (r == 0)
        r = dlx__region_reopen_owned(ro, 2, &other);
    if (r == 0)
        dlx_test_fail_expect(dlx__region_is_owned(ro, 1), "a lock");
    (void)dlx_test_fail_say(r);
    dlx__close(other);
    dlx__close(one);
    dlx__close(ro);
    return r;
}

static int share_region(int kind, struct dlx_test_fail *fail)
{
    const struct dlx_memory *memory = dlx__memory_by_tag((uint32_t)kind);
    ck_assert_ptr_nonnull(memory);
    dlx_test_fail(fail);
    int r = share(memory);
    dlx_test_fail(NULL);
    return r;
}

static int probe_memory(int kind, struct dlx_test_fail *fail)
{
    const struct dlx_memory *memory = dlx__memory_by_tag((uint32_t)kind);
    dlx_test_fail(fail);
    int r = dlx_test_fail_say(dlx__memory_supported(memory));
    dlx_test_fail(NULL);
    return r;
}

enum { ALONE, POSIX, MANAGED, PASSED };

static size_t n_files(void)
{
    size_t n = 0;
    DIR *dir = opendir(place.dir);
    ck_assert_ptr_nonnull(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

static struct sockaddr_un address_of(const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    (void)snprintf(address.sun_path, sizeof address.sun_path, "%.90s/%s", place.dir, name);
    return address;
}

/* The descriptor of a service manager: the socket that it listens to, or the daemon's. */
static int socket_of(int kind, const struct sockaddr_un *address)
{
    if (kind != MANAGED && kind != PASSED)
        return -1;
    int fd = socket(AF_UNIX, (kind == MANAGED ? SOCK_DGRAM : SOCK_SEQPACKET) | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, (const struct sockaddr *)address, sizeof *address), 0);
    if (kind == MANAGED)
        (void)setenv("NOTIFY_SOCKET", address->sun_path, 1);
    else
        ck_assert_int_eq(listen(fd, 1), 0);
    return fd;
}

/* As main() does. */
static int start(struct dlxd_server **ret, int take_listen_fd, const struct dlx_memory *memory)
{
    struct dlxd_manager_fds manager_fds = {.n = 0};
    dlx_cleanup(dlx__closep) int fd = take_listen_fd;
    DLX_TEST_TRY(dlx__memory_supported(memory));
    DLX_TEST_TRY(dlxd_client_supported());
    DLX_TEST_TRY(dlxd_server_new(
        ret, &(struct dlxd_listen){.path = place.path, .take_fd = dlx__steal_fd(&fd)}, memory));
    (void)dlxd_server_keep(*ret, 100, &manager_fds); /* without it, it only says so */
    return 0;
}

static int start_and_end(int passed_fd, const struct dlx_memory *memory, struct dlx_test_fail *fail)
{
    struct dlxd_server *server = NULL;
    int fd = passed_fd < 0 ? -1 : dlx_test_fds_dup(passed_fd);
    dlx_test_fail(fail);
    int r = dlx_test_fail_say(start(&server, fd, memory));
    dlx_test_fail(NULL);
    if (r == 0)
        dlxd_server_free(server);
    return r;
}

static int start_server(int kind, struct dlx_test_fail *fail)
{
    const struct dlx_memory *memory = kind == POSIX ? &dlx__memory_posix : &dlx__memory_memfd;
    const struct sockaddr_un address = address_of(kind == MANAGED ? "n" : "a");
    int fd = socket_of(kind, &address), passed_fd = kind == PASSED ? fd : -1;
    ck_assert_int_eq(start_and_end(passed_fd, memory, NULL), 0);
    size_t n = n_files();
    int r = start_and_end(passed_fd, memory, fail);
    const char *call = dlx_test_fail_stop(fail);
    /* A daemon without the lock, or that cannot tell the owner of the file, leaves it. */
    bool unlocked = call && (strcmp(call, "flock") == 0 || strcmp(call, "fstat") == 0);
    dlx_test_fail_expect(unlocked || n_files() == n, "the files that there were");
    ck_assert_int_eq(start_and_end(passed_fd, memory, NULL), 0);
    dlx__close(fd);
    if (fd >= 0)
        ck_assert_int_eq(unlink(address.sun_path), 0);
    return r;
}

/* Listen fds have the numbers from 3 on. */
static int inherit(int kind, struct dlx_test_fail *fail)
{
    enum { FIRST = 3, N = 3 };
    struct dlxd_manager_fds manager_fds;
    char own[20];
    (void)kind;
    (void)snprintf(own, sizeof own, "%d", (int)getpid());
    (void)setenv("LISTEN_FDS", "3", 1);
    (void)setenv("LISTEN_PID", own, 1);
    (void)setenv("LISTEN_FDNAMES", "a:b:c", 1);
    for (int fd = FIRST; fd < FIRST + N; fd++)
        ck_assert_int_eq(dup2(STDIN_FILENO, fd), fd);
    dlx_test_fail(fail);
    int r = dlx_test_fail_say(dlxd_manager_fds_init(&manager_fds));
    dlx_test_fail(NULL);
    dlx_test_fail_expect(r == 0 || r == DLX_E_NO_MEMORY, "lack of memory");
    dlx_test_fail_expect(manager_fds.n == (r == 0 ? N : 0), "all of them, or none");
    if (r == 0)
        dlxd_manager_fds_deinit(&manager_fds);
    for (int fd = FIRST; fd < FIRST + N; fd++)
        (void)close(fd); /* unless it was closed with the others */
    return r;
}

static int write_handover(struct dlxd_handover *handover, int one, int two)
{
    DLX_TEST_TRY(dlxd_handover_add(handover, one, "one", false));
    DLX_TEST_TRY(dlxd_handover_add(handover, two, "two", true));
    DLX_TEST_TRY(dlxd_handover_add(handover, one, "one again", true));
    return dlxd_handover_write(handover);
}

static int hand_over(int kind, struct dlx_test_fail *fail)
{
    struct dlxd_handover handover;
    struct dlxd_manager_fds manager_fds = {.n = 0};
    int one = dlx_test_fds_dup(STDIN_FILENO), two = dlx_test_fds_dup(STDIN_FILENO);
    char text[64];
    (void)kind;
    dlxd_handover_init(&handover);
    dlx_test_fail(fail);
    int r = dlx_test_fail_say(write_handover(&handover, one, two));
    dlx_test_fail(NULL);
    if (r == 0) {
        (void)snprintf(text, sizeof text, "%d:%d", (int)getpid(), dlx__steal_fd(&handover.fd));
        ck_assert_int_eq(setenv(DLXD_HANDOVER_VARIABLE, text, 1), 0);
        dlx_test_fail(fail);
        r = dlx_test_fail_say(dlxd_manager_fds_init(&manager_fds));
        dlx_test_fail(NULL);
    } else {
        dlxd_handover_undo(&handover);
    }
    dlxd_handover_deinit(&handover);
    dlx_test_fail_expect(manager_fds.n == (r == 0 ? 3 : 0), "all of them, or none");
    dlxd_manager_fds_deinit(&manager_fds);
    (void)close(one); /* unless it was taken */
    (void)close(two);
    return r;
}

#if DLX_TEST_HAS_GPU

#define A_WHILE INT64_C(20000000000)

static struct dlx_test_broker test;
static const struct dlxd_gpu_whose whose = {.origin = 77, .user = 1000};

struct outcome {
    unsigned n; /* answers */
    int code;
};

static void on_answer(void *owner, int code, const char *text, const struct dlxd_gpu_answer *answer)
{
    struct outcome *outcome = owner;
    (void)text;
    outcome->n++;
    outcome->code = code;
    if (code == 0)
        dlx_test_fail_expect(answer->size > 0 && answer->borrow_fd >= 0, "memory");
}

/* Runs the server's loop until the answer to a call that `r` began; returns its code. */
static int answer(const struct outcome *outcome, int r)
{
    uint64_t deadline = dlx__deadline(A_WHILE);
    while (r == 0 && outcome->n == 0 && dlx__now_ns() < deadline) {
        (void)uv_run(&test.loop, UV_RUN_NOWAIT);
        dlxd_broker_settle(&test.broker);
        dlxd_gpu_keeper_look(test.broker.gpu, dlx__now_ns());
        (void)sched_yield();
    }
    if (r < 0)
        return r;
    dlx_test_fail_expect(outcome->n == 1, "one answer");
    return outcome->code;
}

static int allocate_and_get(struct dlxd_user *user, struct dlxd_gpu_member *member,
                            const struct dlxd_gpu_request *request)
{
    struct outcome owner = {.n = 0}, reader = {.n = 0};
    struct dlxd_gpu_call *call = NULL;
    struct dlxd_gpu_keeper *gpu = test.broker.gpu;
    DLX_TEST_TRY(answer(
        &owner, dlxd_gpu_call_allocate(&call, gpu, user, member, request, on_answer, &owner)));
    return answer(&reader, dlxd_gpu_call_get(&call, gpu, user, whose, request->allocation,
                                             on_answer, &reader));
}

/* A connection that the keeper and the daemon make again, a publisher and a reader. */
static int ask_keeper(struct dlxd_user *user, const struct dlx_test_keeper *keeper,
                      struct dlx_test_fail *fail)
{
    static uint64_t last_allocation;
    struct dlxd_gpu_member member = {.origin = NULL};
    char path[108] = "";
    memcpy(path, keeper->path, strlen(keeper->path) - strlen(DLX_KEEPER_SUFFIX));
    int pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0U);
    const struct dlxd_gpu_request request = {.whose = whose,
                                             .allocation = ++last_allocation,
                                             .size = 1,
                                             .device = keeper->device,
                                             .borrow_pidfd = pidfd};
    dlx_test_fail(fail);
    int r =
        dlxd_gpu_keeper_new(&test.broker.gpu, test.broker.watches, test.broker.workers, path, 64);
    if (r == 0) {
        r = allocate_and_get(user, &member, &request);
        (void)dlx_test_fail_say(r);
        dlxd_gpu_keeper_leave(test.broker.gpu, &member);
        test.broker.gpu = dlxd_gpu_keeper_free(test.broker.gpu);
    }
    dlx_test_fail(NULL);
    (void)close(pidfd);
    return r;
}

static int ask_gpu_keeper(int kind, struct dlx_test_fail *fail)
{
    const struct dlxd_principal who = {.uid = 1000};
    const struct dlxk_options options = {.grace_ns = UINT64_C(3600000000000)};
    struct dlx_test_keeper keeper = {.device = {.type = kDLCUDA, .uuid = {[15] = 1}}};
    struct dlxd_user *user;
    (void)kind;
    (void)setenv("STANDIN_UUIDS", "GPU-00000000-0000-0000-0000-000000000001", 1);
    dlx_test_gpu_machine(1);
    dlx_test_gpu_load();
    dlx_test_keeper_start(&keeper, &options);
    dlx_test_broker_init(&test, UINT64_C(1) << 30);
    ck_assert_int_eq(dlxd_users_get(&test.broker.users, &who, &user), 0);
    ok(ask_keeper(user, &keeper, NULL));
    size_t n_fds = dlx_test_broker_n_fds(&test);
    int r = ask_keeper(user, &keeper, fail);
    dlx_test_fail_expect(dlx_test_broker_n_fds(&test) == n_fds, "the descriptors of before");
    (void)dlx_test_fail_stop(fail);
    ck_assert_int_eq(ask_keeper(user, &keeper, NULL), 0);
    dlxd_user_unref(user);
    dlx_test_broker_deinit(&test);
    dlx_test_keeper_kill(&keeper);
    dlx_test_gpu_machine_end();
    return r;
}

#endif

static const struct dlx_test_fail_story stories[] = {
    {"a memfd", live_region, 0, .n_calls = 20, .n_errors = 6},
    {"a region of POSIX shared memory", live_region, 1, .n_calls = 20, .n_errors = 6},
    {"a memfd that several write", share_region, 0, .n_calls = 14, .n_errors = 10},
    {"a region of POSIX shared memory that several write", share_region, 1, .n_calls = 14,
     .n_errors = 10},
    {"are there memfds", probe_memory, 0, .n_calls = 20, .n_errors = 6},
    {"is there POSIX shared memory", probe_memory, 1, .n_calls = 20, .n_errors = 6},
    {"a daemon", start_server, ALONE, .n_calls = 80, .n_errors = 31},
    {"a daemon on POSIX shared memory", start_server, POSIX, .n_calls = 70, .n_errors = 31},
    {"a daemon of a service manager", start_server, MANAGED, .n_calls = 90, .n_errors = 31},
    {"a daemon with its socket from a service manager", start_server, PASSED, .n_calls = 50,
     .n_errors = 16},
    {"inherited descriptors", inherit, 0, .n_calls = 4, .n_errors = 4,
     .words = "3 inherited descriptors", .in_child = true},
    {"a handover", hand_over, 0, .n_calls = 15, .n_errors = 15},
#if DLX_TEST_HAS_GPU
    {"requests to the GPU keeper", ask_gpu_keeper, 0, .n_calls = 40, .n_errors = 6},
#endif
};

LOOP_TEST(each_call_fails_once, 0, DLX_ARRAY_SIZE(stories))
{
    dlx_test_fail_each(&stories[_i]);
}

TEST(the_default_path_is_the_environments)
{
    static const struct {
        const char *socket, *run_dir, *path;
    } all[] = {
        {"/a/s", "/b", "/a/s"},
        {"", "/b", "/b/dlpackd.sock"},
        {NULL, "/b", "/b/dlpackd.sock"},
        {NULL, "", "/run/dlpackd/dlpackd.sock"},
        {NULL, NULL, "/run/dlpackd/dlpackd.sock"},
    };
    for (size_t i = 0; i < DLX_ARRAY_SIZE(all); i++) {
        struct dlx_test_fail fail = {.at = 1};
        (void)(all[i].socket ? setenv("DLX_SOCKET", all[i].socket, 1) : unsetenv("DLX_SOCKET"));
        (void)(all[i].run_dir ? setenv("XDG_RUNTIME_DIR", all[i].run_dir, 1)
                              : unsetenv("XDG_RUNTIME_DIR"));
        char *path = dlxd_listener_default_path();
        ck_assert_str_eq(path, all[i].path);
        free(path);
        dlx__error_clear();
        dlx_test_fail(&fail);
        path = dlxd_listener_default_path();
        dlx_test_fail(NULL);
        ck_assert_ptr_null(path);
        ck_assert_str_ne(dlx__error_message(), "");
    }
}

TEST(a_socket_that_has_a_number_for_a_name_is_refused)
{
    const struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct dlxd_server *server = NULL;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, (const struct sockaddr *)&address, sizeof(sa_family_t)), 0);
    ck_assert_int_eq(start(&server, fd, &dlx__memory_memfd), DLX_E_INVALID);
    ck_assert_ptr_nonnull(strstr(dlx__error_message(), "bound to no path"));
}

int main(void)
{
    TCase *tcase = tcase_create("fails");
    tcase_set_timeout(tcase, 4 * PATIENCE_S);
    dlx_test_dir_fixture(tcase, &place);
    return dlx_test_run_case(tcase);
}
