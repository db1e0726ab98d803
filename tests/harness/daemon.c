/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/daemon.h"
#include "common/memory.h"
#include "ring/layout.h"
#include <dirent.h>
#include <sys/prctl.h>
#include <sys/un.h>

static struct dlx_packet rx;
static struct dlx_proto_arena rx_arena;
static uint32_t last_serial;
const struct dlx_memory *dlx_test_memory;

bool dlx_test_valgrind(void)
{
    const char *value = getenv("VALGRIND");
    return value && *value && strcmp(value, "0") != 0;
}

bool dlx_test_instrumented(void)
{
#ifdef DLX_SANITIZE
    return true;
#endif
    return dlx_test_valgrind();
}

void dlx_test_dir_make(struct dlx_test_daemon *daemon)
{
    const char *tmp = getenv("TMPDIR");
    (void)snprintf(daemon->dir, sizeof daemon->dir, "%s/dlx-XXXXXX", tmp ? tmp : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(daemon->dir));
    (void)setenv("DLX_KEEPER_GRACE", "0.2",
                 0); /* a GPU keeper does not outlive the test for long */
    (void)chmod(daemon->dir, 0755);
    (void)snprintf(daemon->path, sizeof daemon->path, "%s/s", daemon->dir);
    daemon->pid = -1;
    daemon->log_fd = -1;
}

void dlx_test_dir_remove(struct dlx_test_daemon *daemon)
{
    /* A GPU keeper that outlives the test may leave its socket. */
    static const char *const ends[] = {"", ".lock", ".keeper", ".keeper.lock"};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(ends); i++) {
        char path[300];
        (void)snprintf(path, sizeof path, "%s%s", daemon->path, ends[i]);
        (void)unlink(path);
    }
    (void)rmdir(daemon->dir);
}

static struct dlx_test_daemon *fixture; /* Check's have no argument */

static void make_dir(void)
{
    dlx_test_dir_make(fixture);
}

static void remove_dir(void)
{
    dlx_test_dir_remove(fixture);
}

void dlx_test_dir_fixture(TCase *tcase, struct dlx_test_daemon *daemon)
{
    fixture = daemon;
    tcase_add_unchecked_fixture(tcase, make_dir, remove_dir);
}

static const char *program(const struct dlx_test_daemon *daemon)
{
    static char path[512];
    if (daemon && daemon->program)
        return daemon->program;
    const char *build = getenv("BUILD");
    if (!build)
        build = getenv("DLX_BUILD");
    (void)snprintf(path, sizeof path, "%s/dlpackd", build ? build : "build");
    return path;
}

void dlx_test_child_putenv(const char *assignment)
{
    enum { MOST = 512 };
    static char *environment[MOST];
    size_t n = 0, length = strcspn(assignment, "=") + 1;
    for (char **e = environ; *e; e++) {
        if (strncmp(*e, assignment, length) == 0)
            continue;
        if (n == MOST - 2)
            _exit(125);
        environment[n++] = *e; /* at or before where it was */
    }
    environment[n++] = (char *)(uintptr_t)assignment;
    environment[n] = NULL;
    environ = environment;
}

/* `prepare` is called in the child. `daemon` may be NULL. */
static pid_t spawn(const struct dlx_test_daemon *daemon, const char *socket, const char *env,
                   void (*prepare)(void *userdata), void *userdata, int *ret_log_fd)
{
    int pipe_fds[2];
    ck_assert_int_eq(pipe2(pipe_fds, O_CLOEXEC), 0);
    pid_t parent = getpid();
    const char *path = program(daemon);
    const char *const none[2] = {NULL}, *const *option = daemon ? daemon->option : none;
    pid_t pid = fork();
    /* No ck_assert in the child: another thread may have been in one, whose lock is then taken for
     * ever. */
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (getppid() != parent)
            _exit(126);
        if (env)
            dlx_test_child_putenv(env);
        dup2(pipe_fds[1], STDERR_FILENO);
        if (prepare)
            prepare(userdata);
        if (socket)
            execl(path, "dlpackd", "--foreground", "--socket", socket, option[0], option[1],
                  (char *)NULL);
        else
            execl(path, "dlpackd", (char *)NULL);
        _exit(127);
    }
    ck_assert_int_ge(pid, 0);
    close(pipe_fds[1]);
    *ret_log_fd = pipe_fds[0];
    return pid;
}

static int wait_for(pid_t pid)
{
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

/* Returns false if another daemon has its socket. */
static bool is_listening(struct dlx_test_daemon *daemon)
{
    char *log = daemon->said;
    size_t n = 0;
    log[0] = '\0';
    while (!strstr(log, "dlpackd: listening on ")) { /* not "another dlpackd is listening on" */
        ssize_t got = read(daemon->log_fd, log + n, sizeof daemon->said - 1 - n);
        if (got == 0 && strstr(log, "dlpackd: another dlpackd "))
            return false;
        ck_assert_msg(got > 0, "%s does not start: %s", program(daemon), log);
        n += (size_t)got;
        log[n] = '\0';
    }
    return true;
}

static void wait_until_it_listens(struct dlx_test_daemon *daemon)
{
    ck_assert_msg(is_listening(daemon), "%s", daemon->said);
}

/* The daemon of a test that failed has the socket until it has ended, too. */
void dlx_test_daemon_start(struct dlx_test_daemon *daemon, const char *env)
{
    uint64_t deadline = dlx__deadline(INT64_C(1000000) * PATIENCE_MS);
    daemon->pid = spawn(daemon, daemon->path, env, NULL, NULL, &daemon->log_fd);
    while (!is_listening(daemon)) {
        ck_assert_msg(dlx__now_ns() < deadline, "%s", daemon->said);
        (void)wait_for(daemon->pid);
        daemon->log_fd = dlx__close(daemon->log_fd);
        daemon->pid = spawn(daemon, daemon->path, env, NULL, NULL, &daemon->log_fd);
    }
}

void dlx_test_daemon_start_prepared(struct dlx_test_daemon *daemon, void (*prepare)(void *userdata),
                                    void *userdata)
{
    daemon->pid = spawn(daemon, daemon->path, NULL, prepare, userdata, &daemon->log_fd);
    wait_until_it_listens(daemon);
}

_Noreturn void dlx_test_daemon_exec(const struct dlx_test_daemon *daemon, const char *const *args)
{
    const char *argv[16] = {"dlpackd", "--foreground", "--socket", daemon->path};
    for (size_t i = 0; args[i] && i < 11; i++)
        argv[4 + i] = args[i];
    (void)execv(program(daemon), (char **)(uintptr_t)argv);
    _exit(127);
}

void dlx_test_daemon_start_default(struct dlx_test_daemon *daemon, const char *env)
{
    daemon->pid = spawn(daemon, NULL, env, NULL, NULL, &daemon->log_fd);
    wait_until_it_listens(daemon);
}

int dlx_test_daemon_fail(const char *socket, char *log, size_t log_size)
{
    int fd;
    size_t n = 0;
    pid_t pid = spawn(NULL, socket, NULL, NULL, NULL, &fd);
    ssize_t got;
    while (n < log_size - 1 && (got = read(fd, log + n, log_size - 1 - n)) > 0) {
        n += (size_t)got;
        log[n] = '\0';
        ck_assert_msg(!strstr(log, "dlpackd: listening on "), "it does not fail: %s", log);
    }
    log[n] = '\0';
    close(fd);
    return wait_for(pid);
}

const char *dlx_test_daemon_refuses(const char *socket, int status, const char *words)
{
    static char log[4096];
    ck_assert_int_eq(dlx_test_daemon_fail(socket, log, sizeof log), status);
    ck_assert_msg(strstr(log, words), "'%s' lacks '%s'", log, words);
    return log;
}

int dlx_test_daemon_wait_end(struct dlx_test_daemon *daemon)
{
    int status = wait_for(daemon->pid);
    daemon->log_fd = dlx__close(daemon->log_fd);
    daemon->pid = -1;
    return status;
}

static int end(struct dlx_test_daemon *daemon, int signum)
{
    ck_assert_int_eq(kill(daemon->pid, signum), 0);
    return dlx_test_daemon_wait_end(daemon);
}

int dlx_test_daemon_stop(struct dlx_test_daemon *daemon)
{
    return end(daemon, SIGTERM);
}

void dlx_test_daemon_kill(struct dlx_test_daemon *daemon)
{
    (void)end(daemon, SIGKILL);
}

void dlx_test_daemon_pause(const struct dlx_test_daemon *daemon)
{
    int status;
    ck_assert_int_eq(kill(daemon->pid, SIGSTOP), 0);
    ck_assert_int_eq(waitpid(daemon->pid, &status, WUNTRACED), daemon->pid);
    ck_assert_msg(WIFSTOPPED(status), "the daemon ended: %#x", (unsigned)status);
}

size_t dlx_test_daemon_n_fds(const struct dlx_test_daemon *daemon)
{
    char path[64];
    size_t n = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/fd", (int)daemon->pid);
    DIR *dir = opendir(path);
    ck_assert_ptr_nonnull(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n - 2;
}

struct rlimit dlx_test_daemon_leave_fds(const struct dlx_test_daemon *daemon, unsigned n)
{
    char path[64];
    struct rlimit before, few = {.rlim_cur = 0};
    ck_assert_int_eq(prlimit(daemon->pid, RLIMIT_NOFILE, NULL, &before), 0);
    few.rlim_max = before.rlim_max;
    for (;; few.rlim_cur++) {
        (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)daemon->pid, (int)few.rlim_cur);
        if (faccessat(AT_FDCWD, path, F_OK, AT_SYMLINK_NOFOLLOW) != 0 && n-- == 0)
            break;
    }
    ck_assert_int_eq(prlimit(daemon->pid, RLIMIT_NOFILE, &few, NULL), 0);
    return before;
}

void dlx_test_daemon_wait_n_fds(const struct dlx_test_daemon *daemon, size_t n)
{
    uint64_t deadline = dlx__deadline(INT64_C(1000000) * PATIENCE_MS);
    while (dlx_test_daemon_n_fds(daemon) != n) {
        ck_assert_msg(dlx__now_ns() < deadline, "daemon has %zu fds, expected %zu",
                      dlx_test_daemon_n_fds(daemon), n);
        (void)poll(NULL, 0, 1);
    }
}

int dlx_test_connect(const struct dlx_test_daemon *daemon)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    memcpy(address.sun_path, daemon->path, strlen(daemon->path));
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

int dlx_test_hello(const struct dlx_test_daemon *daemon, uint32_t max_links)
{
    int fd = dlx_test_connect(daemon);
    dlx_test_greet(fd, max_links);
    return fd;
}

void dlx_test_greet(int fd, uint32_t max_links)
{
    Dlx__Wire__Hello hello = DLX__WIRE__HELLO__INIT;
    char name[] = "test";
    hello.major = DLX_PROTO_MAJOR;
    hello.minor = DLX_PROTO_MINOR;
    hello.name = name;
    hello.max_links = max_links;
    const Dlx__Wire__Packet *reply = dlx_test_call(fd, BODY(HELLO), &hello);
    ck_assert_int_eq(reply->body_case, BODY(HELLO_REPLY));
    dlx_test_memory = dlx__memory_by_tag(reply->hello_reply->memory);
    ck_assert_ptr_nonnull(dlx_test_memory);
}

void dlx_test_send(int fd, Dlx__Wire__Packet__BodyCase body, void *message, uint32_t serial)
{
    Dlx__Wire__Packet packet = DLX__WIRE__PACKET__INIT;
    packet.serial = serial;
    packet.body_case = body;
    packet.ok = message; /* a union of pointers */
    ck_assert_int_eq(dlx__proto_send(fd, &packet, NULL, 0), 0);
}

bool dlx_test_is_readable(int fd, int timeout_ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int n = poll(&p, 1, timeout_ms);
    ck_assert_int_ge(n, 0);
    return n == 1;
}

void dlx_test_wait_readable(int fd)
{
    ck_assert_msg(dlx_test_is_readable(fd, PATIENCE_MS), "nothing came");
}

const Dlx__Wire__Packet *dlx_test_recv(int fd)
{
    const Dlx__Wire__Packet *packet;
    dlx__packet_deinit(&rx);
    dlx_test_wait_readable(fd);
    int r = dlx__packet_recv_fds(fd, &rx);
    ck_assert_msg(r == 0, "receive: %s: %s", dlx__error_name(r), dlx__error_message());
    r = dlx__proto_unpack(&rx_arena, rx.data, rx.size, &packet);
    ck_assert_msg(r == 0, "unpack: %s", dlx__error_message());
    return packet;
}

static const Dlx__Wire__Packet *check_body(const Dlx__Wire__Packet *packet,
                                           Dlx__Wire__Packet__BodyCase body)
{
    const char *text = "";
    if (packet->body_case == BODY(ERROR))
        text = packet->error->text;
    if (packet->body_case == BODY(DISCONNECT))
        text = packet->disconnect->text;
    if (packet->body_case == BODY(LINK_FAILED))
        text = packet->link_failed->text;
    ck_assert_msg(packet->body_case == body, "got %s %s, expected %d", dlx__proto_name(packet),
                  text, (int)body);
    return packet;
}

const Dlx__Wire__Packet *dlx_test_expect(int fd, Dlx__Wire__Packet__BodyCase body)
{
    return check_body(dlx_test_recv(fd), body);
}

void dlx_test_recv_done(void)
{
    dlx__packet_deinit(&rx);
}

size_t dlx_test_n_fds(void)
{
    return rx.n_fds;
}

int dlx_test_take_fd(size_t i)
{
    int fd = dlx__packet_steal_fd(&rx, i);
    ck_assert_int_ge(fd, 0);
    return fd;
}

bool dlx_test_is_silent(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0) == 0;
}

const Dlx__Wire__Packet *dlx_test_call(int fd, Dlx__Wire__Packet__BodyCase body, void *message)
{
    uint32_t serial = ++last_serial;
    dlx_test_send(fd, body, message, serial);
    const Dlx__Wire__Packet *reply = dlx_test_recv(fd);
    ck_assert_uint_eq(reply->serial, reply->body_case == BODY(DISCONNECT) ? 0 : serial);
    return reply;
}

const Dlx__Wire__Packet *dlx_test_call_for(int fd, Dlx__Wire__Packet__BodyCase body, void *message,
                                           Dlx__Wire__Packet__BodyCase reply_body)
{
    return check_body(dlx_test_call(fd, body, message), reply_body);
}

const char *dlx_test_call_error(int fd, Dlx__Wire__Packet__BodyCase body, void *message, int code)
{
    const Dlx__Wire__Error *error = dlx_test_call_for(fd, body, message, BODY(ERROR))->error;
    ck_assert_msg(error->code == code, "%s: %s", dlx__error_name(error->code), error->text);
    ck_assert_msg(error->text[0] != '\0', "no words");
    return error->text;
}

void dlx_test_call_ok(int fd, Dlx__Wire__Packet__BodyCase body, void *message)
{
    (void)dlx_test_call_for(fd, body, message, BODY(OK));
}

const char *dlx_test_disconnected(int fd, int code)
{
    static char text[DLX_ERROR_TEXT_SIZE + 1];
    const Dlx__Wire__Packet *packet = dlx_test_recv(fd);
    while (packet->body_case != BODY(DISCONNECT))
        packet = dlx_test_recv(fd);
    ck_assert_uint_eq(packet->serial, 0);
    ck_assert_msg(packet->disconnect->code == code, "%s: %s",
                  dlx__error_name(packet->disconnect->code), packet->disconnect->text);
    (void)snprintf(text, sizeof text, "%s", packet->disconnect->text);
    ck_assert_msg(text[0] != '\0', "no words");
    dlx_test_wait_readable(fd);
    ck_assert_int_eq(dlx__packet_recv_fds(fd, &rx), DLX_E_DISCONNECTED);
    close(fd);
    return text;
}

Dlx__Wire__PublisherNew dlx_test_publisher_request(const char *topic)
{
    Dlx__Wire__PublisherNew request = DLX__WIRE__PUBLISHER_NEW__INIT;
    request.topic = (char *)(uintptr_t)topic;
    request.history = 4;
    request.depth = 16;
    request.n_entries = 256;
    return request;
}

void dlx_test_publisher_new(struct dlx_test_publisher *publisher, int control, const char *topic,
                            uint32_t on_full)
{
    Dlx__Wire__PublisherNew request = dlx_test_publisher_request(topic);
    request.on_full = on_full;
    dlx_test_publisher_new_from(publisher, control, &request);
}

void dlx_test_publisher_new_from(struct dlx_test_publisher *publisher, int control,
                                 Dlx__Wire__PublisherNew *request)
{
    const Dlx__Wire__PublisherNewReply *body =
        dlx_test_call_for(control, BODY(PUBLISHER_NEW), request, BODY(PUBLISHER_NEW_REPLY))
            ->publisher_new_reply;
    ck_assert_uint_eq(dlx_test_n_fds(), 3);
    publisher->id = body->publisher;
    publisher->control = control;
    publisher->block_size = body->control_size;
    publisher->line = body->membership_line;
    ck_assert_uint_eq(body->control_size, dlx_shm_control_size(request->n_entries));
    ck_assert_int_eq(dlx__region_attach(dlx_test_memory, dlx_test_take_fd(1), body->membership_size,
                                        &publisher->membership),
                     0);
    publisher->link_sock = dlx_test_take_fd(2);
    ck_assert_int_eq(dlx__region_populate(dlx_test_memory, dlx_test_take_fd(0),
                                          publisher->block_size, &publisher->block),
                     0);
}

void dlx_test_publisher_ready(struct dlx_test_publisher *publisher)
{
    Dlx__Wire__PublisherReady request = DLX__WIRE__PUBLISHER_READY__INIT;
    request.publisher = publisher->id;
    dlx_test_call_ok(publisher->control, BODY(PUBLISHER_READY), &request);
}

void dlx_test_publisher_deinit(struct dlx_test_publisher *publisher)
{
    dlx__region_unmap(publisher->block, publisher->block_size);
    dlx__region_unmap(publisher->membership, DLX_PAGE);
    publisher->block = NULL;
    publisher->membership = NULL;
    publisher->link_sock = dlx__close(publisher->link_sock);
}

uint32_t dlx_test_arena_new(const struct dlx_test_publisher *publisher, uint64_t size)
{
    Dlx__Wire__ArenaNew request = DLX__WIRE__ARENA_NEW__INIT;
    request.publisher = publisher->id;
    request.arena_size = size;
    const Dlx__Wire__Packet *reply =
        dlx_test_call_for(publisher->control, BODY(ARENA_NEW), &request, BODY(ARENA_NEW_REPLY));
    ck_assert_uint_eq(dlx_test_n_fds(), 1);
    return reply->arena_new_reply->arena;
}

void dlx_test_arena_ready(const struct dlx_test_publisher *publisher, uint32_t arena)
{
    Dlx__Wire__ArenaReady request = DLX__WIRE__ARENA_READY__INIT;
    request.publisher = publisher->id;
    request.arena = arena;
    dlx_test_call_ok(publisher->control, BODY(ARENA_READY), &request);
}

uint32_t dlx_test_arena(const struct dlx_test_publisher *publisher, uint64_t size)
{
    uint32_t arena = dlx_test_arena_new(publisher, size);
    void *map;
    ck_assert_int_eq(dlx__region_populate(dlx_test_memory, dlx_test_take_fd(0), size, &map), 0);
    dlx__region_unmap(map, size);
    dlx_test_arena_ready(publisher, arena);
    return arena;
}

static struct dlx_shm_membership *line_of(const struct dlx_test_publisher *publisher)
{
    return (struct dlx_shm_membership *)(uintptr_t)publisher->membership + publisher->line;
}

uint64_t dlx_test_joins(const struct dlx_test_publisher *publisher)
{
    return dlx_load64_sc(&line_of(publisher)->joins);
}

uint64_t dlx_test_leaves(const struct dlx_test_publisher *publisher)
{
    return dlx_load64_sc(&line_of(publisher)->leaves);
}

void dlx_test_subscribe(struct dlx_test_subscription *subscription, int control, const char *topic,
                        bool reliable)
{
    Dlx__Wire__Subscribe request = DLX__WIRE__SUBSCRIBE__INIT;
    request.topic = (char *)(uintptr_t)topic;
    request.max_held = 16;
    request.reliable = reliable;
    const Dlx__Wire__Packet *reply =
        dlx_test_call_for(control, BODY(SUBSCRIBE), &request, BODY(SUBSCRIBE_REPLY));
    ck_assert_uint_eq(dlx_test_n_fds(), 1);
    subscription->id = reply->subscribe_reply->subscription;
    subscription->n_offers = reply->subscribe_reply->n_offers;
    subscription->n_fds = 0;
    subscription->fd = dlx_test_take_fd(0);
}

void dlx_test_subscription_deinit(struct dlx_test_subscription *subscription)
{
    subscription->fd = dlx__close(subscription->fd);
}

void dlx_test_ack(struct dlx_test_subscription *subscription)
{
    Dlx__Wire__Ack ack = DLX__WIRE__ACK__INIT;
    ack.n = ++subscription->n_fds;
    dlx_test_send(subscription->fd, BODY(ACK), &ack, 0);
}

uint64_t dlx_test_accept_offer(struct dlx_test_subscription *subscription)
{
    Dlx__Wire__LinkReady ready = DLX__WIRE__LINK_READY__INIT;
    const Dlx__Wire__Packet *packet = dlx_test_expect(subscription->fd, BODY(LINK_OFFER));
    void *map;
    ck_assert_uint_eq(dlx_test_n_fds(), 1);
    uint64_t size = packet->link_offer->page_size;
    ck_assert_uint_eq(size, dlx_shm_link_size(packet->link_offer->max_held));
    ready.link = packet->link_offer->link;
    ck_assert_int_eq(dlx__region_populate(dlx_test_memory, dlx_test_take_fd(0), size, &map), 0);
    dlx_store64_sc(&((struct dlx_shm_link *)map)->cursor, DLX_SHM_CURSOR_CLOSED);
    dlx__region_unmap(map, size);
    dlx_test_ack(subscription);
    dlx_test_send(subscription->fd, BODY(LINK_READY), &ready, 0);
    return ready.link;
}

uint64_t dlx_test_join(struct dlx_test_subscription *subscription)
{
    uint64_t link = dlx_test_accept_offer(subscription);
    const Dlx__Wire__Packet *packet = dlx_test_expect(subscription->fd, BODY(LINK_OPEN));
    ck_assert_uint_eq(dlx_test_n_fds(), 2);
    ck_assert_uint_eq(packet->link_open->link, link);
    dlx_test_ack(subscription);
    return link;
}
