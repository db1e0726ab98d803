/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's log: refusals as entries of the journal, and how many lines there are in a
 * second. */
#include "daemon/base/log.h"
#include "tests/harness/daemon.h"
#include "tests/harness/fds.h"
#include "tests/harness/run.h"
#include <sys/un.h>

static struct dlx_test_daemon place; /* its folder */
static char journal_path[300], text[8192];
static int journal = -1, lines = -1, stderr_fd = -1;

/* Lines and entries come here. */
static void begin(void)
{
    int fds[2];
    (void)snprintf(journal_path, sizeof journal_path, "%s/j", place.dir);
    (void)unlink(journal_path);
    journal = dlx_test_fds_bind(journal_path, SOCK_DGRAM | SOCK_NONBLOCK);
    ck_assert_int_eq(pipe2(fds, O_CLOEXEC | O_NONBLOCK), 0);
    stderr_fd = dup(STDERR_FILENO);
    ck_assert_int_eq(dup2(fds[1], STDERR_FILENO), STDERR_FILENO);
    close(fds[1]);
    lines = fds[0];
    dlxd_log_init(DLXD_LOG_NOTICE, journal_path);
}

static void end(void)
{
    (void)dup2(stderr_fd, STDERR_FILENO);
    close(stderr_fd);
    close(lines);
    close(journal);
    ck_assert_int_eq(unlink(journal_path), 0);
}

/* The lines that are there now. */
static const char *read_lines(void)
{
    ssize_t n = read(lines, text, sizeof text - 1);
    text[DLX_MAX(n, 0)] = '\0';
    return text;
}

static const char *read_entry(void)
{
    ssize_t n = recv(journal, text, sizeof text - 1, 0);
    text[DLX_MAX(n, 0)] = '\0';
    return text;
}

static void refuse(const char *topic)
{
    const struct dlxd_log_field fields[] = {
        {"DLPACKD_UID", "1000"}, {"DLPACKD_TOPIC", topic}, {"DLPACKD_RULE", NULL}};
    dlxd_log_refusal(1000, fields, DLX_ARRAY_SIZE(fields), "refused: %s", topic);
}

TEST(a_refusal_is_an_entry_with_fields)
{
    refuse("cam/front");
    ck_assert_str_eq(read_entry(), "MESSAGE=refused: cam/front\nPRIORITY=5\n"
                                   "SYSLOG_IDENTIFIER=dlpackd\nDLPACKD_UID=1000\n"
                                   "DLPACKD_TOPIC=cam/front\n");
    ck_assert_str_eq(read_lines(), "");
}

TEST(a_value_adds_no_field)
{
    refuse("a\nDLPACKD_UID=0\t");
    ck_assert_str_eq(read_entry(), "MESSAGE=refused: a?DLPACKD_UID=0?\nPRIORITY=5\n"
                                   "SYSLOG_IDENTIFIER=dlpackd\nDLPACKD_UID=1000\n"
                                   "DLPACKD_TOPIC=a?DLPACKD_UID=0?\n");
}

TEST(an_entry_that_the_journal_does_not_take_is_a_line)
{
    char long_topic[5000];
    memset(long_topic, 'x', sizeof long_topic - 1);
    long_topic[sizeof long_topic - 1] = '\0';
    refuse(long_topic); /* it does not fit */
    ck_assert_str_eq(read_entry(), "");
    ck_assert_int_eq(strncmp(read_lines(), "<5>refused: xxx", 15), 0);
    /* The journal does not read: its queue is full. */
    struct sockaddr_un address;
    socklen_t size = sizeof address;
    ck_assert_int_eq(getsockname(journal, (struct sockaddr *)&address, &size), 0);
    int sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    while (sendto(sock, "", 0, 0, (const struct sockaddr *)&address, size) == 0)
        ;
    close(sock);
    refuse("full");
    ck_assert_str_eq(read_lines(), "<5>refused: full\n");
    dlxd_log_init(DLXD_LOG_NOTICE, "/nonexistent/journal");
    refuse("absent");
    ck_assert_str_eq(read_lines(), "<5>refused: absent\n");
    dlxd_log_init(DLXD_LOG_NOTICE, NULL);
    refuse("unnamed");
    ck_assert_str_eq(read_lines(), "dlpackd: refused: unnamed\n");
    dlxd_log_init(DLXD_LOG_WARNING, journal_path);
    refuse("not wanted");
    ck_assert_str_eq(read_lines(), "");
}

static unsigned n_refused, n_entries, n_said;

static void refuse_and_count(void)
{
    refuse("a");
    n_refused++;
    while (*read_entry())
        n_entries++;
    for (const char *at = read_lines(); (at = strstr(at, "<4>")); at++) {
        ck_assert_msg(strstr(at, " refusals were not written (of uid 1000)\n"), "%s", text);
        n_said += (unsigned)strtoul(at + 3, NULL, 10);
    }
}

/* Refusals, which strangers cause, hide no line of another kind, and omitted ones are counted. */
TEST(many_refusals_hide_nothing_else)
{
    const uint64_t deadline = dlx__deadline(PATIENCE);
    while (n_entries == n_refused)
        refuse_and_count();
    ck_assert_uint_ge(n_entries, 10);
    for (int i = 0; i < 1000; i++)
        refuse_and_count();
    dlxd_log(DLXD_LOG_ERROR, "of another kind");
    ck_assert_msg(strstr(read_lines(), "<3>of another kind\n"), "%s", text);
    for (unsigned round = 0, before = 0; round < 2; round++, before = n_said) {
        while (n_entries + n_said < n_refused || n_said == before) { /* said in the next second */
            ck_assert_uint_lt(dlx__now_ns(), deadline);
            (void)poll(NULL, 0, 1);
            refuse_and_count();
        }
        ck_assert_uint_eq(n_entries + n_said, n_refused);
    }
}

/* Garbage of a user that is not served, for example. */
TEST(lines_of_one_user_hide_neither_the_administrator_s_nor_another_user_s)
{
    for (int i = 0; i < 1000; i++)
        dlxd_log_client(7, DLXD_LOG_NOTICE, "garbage");
    (void)read_lines();
    dlxd_log_client(8, DLXD_LOG_NOTICE, "of another user");
    ck_assert_ptr_nonnull(strstr(read_lines(), "<5>of another user\n"));
    dlxd_log(DLXD_LOG_NOTICE, "for the administrator");
    ck_assert_ptr_nonnull(strstr(read_lines(), "<5>for the administrator\n"));
}

TEST(errors_for_the_administrator_always_come_through)
{
    for (int i = 0; i < 1000; i++) {
        dlxd_log(DLXD_LOG_NOTICE, "notice");
        dlxd_log_client((uint64_t)i, DLXD_LOG_NOTICE, "garbage");
        (void)read_lines();
    }
    dlxd_log(DLXD_LOG_ERROR, "an error");
    ck_assert_ptr_nonnull(strstr(read_lines(), "<3>an error\n"));
}

/* More users than have a place. */
TEST(dropped_lines_are_counted_before_the_end)
{
    enum { USERS = 100, LINES = 30 };
    unsigned n_written = 0, n_counted = 0;
    for (uint64_t user = 1; user <= USERS; user++)
        for (int i = 0; i < LINES; i++) {
            dlxd_log_client(user, DLXD_LOG_NOTICE, "garbage");
            for (const char *at = read_lines(); (at = strstr(at, "<5>garbage")); at++)
                n_written++;
            for (const char *at = text; (at = strstr(at, "<4>")); at++)
                n_counted += (unsigned)strtoul(at + 3, NULL, 10);
        }
    dlxd_log_flush();
    for (const char *at = read_lines(); (at = strstr(at, "<4>")); at++)
        n_counted += (unsigned)strtoul(at + 3, NULL, 10);
    ck_assert_uint_eq(n_written + n_counted, USERS * LINES);
    dlxd_log_flush();
    ck_assert_str_eq(read_lines(), "");
}

TEST(stderr_is_the_journal_s_if_it_is_the_stream_that_is_named)
{
    char name[64];
    struct stat st;
    ck_assert_int_eq(fstat(STDERR_FILENO, &st), 0);
    (void)unsetenv("JOURNAL_STREAM");
    ck_assert(!dlxd_log_is_journal());
    (void)snprintf(name, sizeof name, "%ju:%ju", (uintmax_t)st.st_dev, (uintmax_t)st.st_ino);
    (void)setenv("JOURNAL_STREAM", name, 1);
    ck_assert(dlxd_log_is_journal());
    (void)snprintf(name, sizeof name, "%ju:%ju", (uintmax_t)st.st_dev, (uintmax_t)st.st_ino + 1);
    (void)setenv("JOURNAL_STREAM", name, 1);
    ck_assert(!dlxd_log_is_journal());
}

int main(void)
{
    TCase *tcase = tcase_create("log");
    tcase_set_timeout(tcase, PATIENCE_S);
    dlx_test_dir_fixture(tcase, &place);
    tcase_add_checked_fixture(tcase, begin, end);
    return dlx_test_run_case(tcase);
}
