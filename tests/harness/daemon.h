/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_DAEMON_H
#define DLX_TESTS_HARNESS_DAEMON_H

/*
 * A daemon of the test's own, and packets to and from it, for tests that speak the protocol
 * themselves. A failure ends the test by ck_assert. Nothing here sleeps: everything waits for an
 * event, ten seconds at most.
 */

#include "tests/harness/fds.h"
#include "tests/harness/message.h"
#include "tests/harness/patience.h"
#include "tests/harness/run.h"
#include <sys/resource.h>

struct dlx_test_daemon {
    pid_t pid;
    int log_fd; /* its stderr */
    char dir[200];
    char path[256];
    char said[4096];       /* on its stderr before it listened */
    const char *program;   /* NULL: of this build */
    const char *option[2]; /* more of them, one each; NULL: none */
};

/* Does the test run under valgrind (VALGRIND=1)? Valgrind simulates some things that a test may
 * look at. */
bool dlx_test_valgrind(void);
/* Or with a sanitizer? Both have descriptors, memory and system calls of their own. */
bool dlx_test_instrumented(void);

/* Make and remove a folder for the socket, under $TMPDIR. In unchecked fixtures: the kernel ends a
 * daemon that a failed test left (PDEATHSIG), but does not remove its folder. */
void dlx_test_dir_make(struct dlx_test_daemon *daemon);
void dlx_test_dir_remove(struct dlx_test_daemon *daemon);
/* Both, around all tests of a case. One folder a program. */
void dlx_test_dir_fixture(TCase *tcase, struct dlx_test_daemon *daemon);

/* In a forked child, which then calls exec: put "NAME=value", which stays the caller's, into its
 * environment. Unlike putenv() it takes no memory: with AddressSanitizer, a thread of the parent
 * may have had the allocator's lock, which no thread of the child gives back. */
void dlx_test_child_putenv(const char *assignment);

/* Run the daemon of this build until it listens. `env` is NULL or "NAME=value". */
void dlx_test_daemon_start(struct dlx_test_daemon *daemon, const char *env);
/* The same; `prepare` is called in the child before the program is. */
void dlx_test_daemon_start_prepared(struct dlx_test_daemon *daemon, void (*prepare)(void *userdata),
                                    void *userdata);
#define DLX_TEST_WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* For `prepare`: become the daemon of this build, on this socket, with these further arguments, of
 * which the last is NULL. */
_Noreturn void dlx_test_daemon_exec(const struct dlx_test_daemon *daemon, const char *const *args);
/* The same without --socket: the daemon must find daemon->path by `env`. */
void dlx_test_daemon_start_default(struct dlx_test_daemon *daemon, const char *env);
/* Run a daemon that must fail: returns its exit status; `ret_log` is its output. */
int dlx_test_daemon_fail(const char *socket, char *ret_log, size_t log_size);
/* The same: it fails with this status, and with these words in its output, which is returned. */
const char *dlx_test_daemon_refuses(const char *socket, int status, const char *words);
/* Wait until the daemon ends by itself; returns the exit status. */
int dlx_test_daemon_wait_end(struct dlx_test_daemon *daemon);
/* SIGTERM; returns the exit status. */
int dlx_test_daemon_stop(struct dlx_test_daemon *daemon);
/* SIGKILL. */
void dlx_test_daemon_kill(struct dlx_test_daemon *daemon);
/* SIGSTOP: the daemon stands still until a SIGCONT. */
void dlx_test_daemon_pause(const struct dlx_test_daemon *daemon);
/* Open descriptors of the daemon. */
size_t dlx_test_daemon_n_fds(const struct dlx_test_daemon *daemon);
/* Let the daemon open `n` more descriptors only: RLIMIT_NOFILE, whose former value is returned. */
struct rlimit dlx_test_daemon_leave_fds(const struct dlx_test_daemon *daemon, unsigned n);
/* Wait until the daemon has this many again. */
void dlx_test_daemon_wait_n_fds(const struct dlx_test_daemon *daemon, size_t n);
/* Wait until there is something to be received, or the end. */
void dlx_test_wait_readable(int fd);
bool dlx_test_is_readable(int fd, int timeout_ms);

/* The daemon's memory, as it told the client of the last Hello. */
extern const struct dlx_memory *dlx_test_memory;

/* A connection that has sent nothing; one that has sent Hello and may have this many links. */
int dlx_test_connect(const struct dlx_test_daemon *daemon);
int dlx_test_hello(const struct dlx_test_daemon *daemon, uint32_t max_links);
/* Send Hello on a connection that has sent nothing. */
void dlx_test_greet(int fd, uint32_t max_links);

/* The body and the message of a packet: dlx_test_call_ok(fd, ARENA_DROP(.arena = 3)). */
#define HELLO(...)              DLX_TEST_BODY(HELLO, hello, __VA_ARGS__)
#define PUBLISHER_READY(...)    DLX_TEST_BODY(PUBLISHER_READY, publisher_ready, __VA_ARGS__)
#define PUBLISHER_CLOSE(...)    DLX_TEST_BODY(PUBLISHER_CLOSE, publisher_close, __VA_ARGS__)
#define ARENA_NEW(...)          DLX_TEST_BODY(ARENA_NEW, arena_new, __VA_ARGS__)
#define ARENA_READY(...)        DLX_TEST_BODY(ARENA_READY, arena_ready, __VA_ARGS__)
#define ARENA_DROP(...)         DLX_TEST_BODY(ARENA_DROP, arena_drop, __VA_ARGS__)
#define SUBSCRIPTION_CLOSE(...) DLX_TEST_BODY(SUBSCRIPTION_CLOSE, subscription_close, __VA_ARGS__)
#define LIST_PUBLISHERS(...)    DLX_TEST_BODY(LIST_PUBLISHERS, list_publishers, __VA_ARGS__)
#define LIST_LINKS(...)         DLX_TEST_BODY(LIST_LINKS, list_links, __VA_ARGS__)
#define DAEMON_INFO(...)        DLX_TEST_BODY(DAEMON_INFO, daemon_info, __VA_ARGS__)
#define LINK_READY(...)         DLX_TEST_BODY(LINK_READY, link_ready, __VA_ARGS__)
#define LINK_CLOSE(...)         DLX_TEST_BODY(LINK_CLOSE, link_close, __VA_ARGS__)
#define ACK(...)                DLX_TEST_BODY(ACK, ack, __VA_ARGS__)
#define OK(...)                 DLX_TEST_BODY(OK, ok, __VA_ARGS__)

#define DLX_TEST_BODY(NAME, name, ...) BODY(NAME), WIRE(name, __VA_ARGS__)

void dlx_test_send(int fd, Dlx__Wire__Packet__BodyCase body, void *message, uint32_t serial);
/* The next packet; valid until the next call. Its fds are closed by then, unless taken. */
const Dlx__Wire__Packet *dlx_test_recv(int fd);
/* The next packet must have this body. */
const Dlx__Wire__Packet *dlx_test_expect(int fd, Dlx__Wire__Packet__BodyCase body);
size_t dlx_test_n_fds(void);
/* Close the fds of the last packet: at the end of a test. */
void dlx_test_recv_done(void);
int dlx_test_take_fd(size_t i);
/* Is no packet there? */
bool dlx_test_is_silent(int fd);
/* Send a request, and return its reply. */
const Dlx__Wire__Packet *dlx_test_call(int fd, Dlx__Wire__Packet__BodyCase body, void *message);
/* The same, and the reply must have this body. */
const Dlx__Wire__Packet *dlx_test_call_for(int fd, Dlx__Wire__Packet__BodyCase body, void *message,
                                           Dlx__Wire__Packet__BodyCase reply_body);
/* The same, and the reply must be an Error with this code; returns its text. */
const char *dlx_test_call_error(int fd, Dlx__Wire__Packet__BodyCase body, void *message, int code);
void dlx_test_call_ok(int fd, Dlx__Wire__Packet__BodyCase body, void *message);
/* The next packet must be a Disconnect with this code, and the last one; closes the fd. Returns the
 * text. */
const char *dlx_test_disconnected(int fd, int code);

/* ---- stories ------------------------------------------------------------------------------- */

struct dlx_test_publisher {
    uint64_t id;
    int control; /* the client's control socket */
    int link_sock;
    void *block;
    uint64_t block_size;
    const void *membership;
    uint32_t line;
};

struct dlx_test_subscription {
    uint64_t id;
    int fd;
    uint32_t n_offers;
    uint32_t n_fds; /* packets with fds received */
};

/* A variable declared as one of these, and set up, is released at the end of its block. */
#define auto_test_publisher DLX_TEST_AUTO(dlx_test_publisher_deinit) struct dlx_test_publisher
#define auto_test_subscription                                                                     \
    DLX_TEST_AUTO(dlx_test_subscription_deinit) struct dlx_test_subscription

void dlx_test_publisher_new(struct dlx_test_publisher *publisher, int control, const char *topic,
                            uint32_t on_full);
/* The same, with a request of the test's own, which may begin as this one: it does not block. */
Dlx__Wire__PublisherNew dlx_test_publisher_request(const char *topic);
void dlx_test_publisher_new_from(struct dlx_test_publisher *publisher, int control,
                                 Dlx__Wire__PublisherNew *request);
void dlx_test_publisher_ready(struct dlx_test_publisher *publisher);
void dlx_test_publisher_deinit(struct dlx_test_publisher *publisher);
/* Makes an arena; the current packet has its fd; returns the id. */
uint32_t dlx_test_arena_new(const struct dlx_test_publisher *publisher, uint64_t size);
void dlx_test_arena_ready(const struct dlx_test_publisher *publisher, uint32_t arena);
/* Makes an arena, and makes it ready; returns the id. */
uint32_t dlx_test_arena(const struct dlx_test_publisher *publisher, uint64_t size);
uint64_t dlx_test_joins(const struct dlx_test_publisher *publisher);
uint64_t dlx_test_leaves(const struct dlx_test_publisher *publisher);

void dlx_test_subscribe(struct dlx_test_subscription *subscription, int control, const char *topic,
                        bool reliable);
void dlx_test_subscription_deinit(struct dlx_test_subscription *subscription);
void dlx_test_ack(struct dlx_test_subscription *subscription);
/* Receives an offer, allocates the page, which says that no message is taken, answers, and
 * acknowledges; returns the link. */
uint64_t dlx_test_accept_offer(struct dlx_test_subscription *subscription);
/* Receives packets until LinkOpen, which stays the current one, and acknowledges them. */
uint64_t dlx_test_join(struct dlx_test_subscription *subscription);

#endif
