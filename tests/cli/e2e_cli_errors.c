/* SPDX-License-Identifier: Apache-2.0 */
/* dlxctl and what goes wrong: exit statuses, and words that name what, who and the limit. */
#include "tests/cli/harness_cli_case.h"
#include "tests/harness/run.h"
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Run, check the status, and that stderr has these words and is one line; stdout stays empty. */
static void expect(int status, const char *words, int stdin_fd, const char *const *arguments)
{
    struct dlx_test_cli cli;
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, stdin_fd, status, arguments);
    ck_assert_msg(strstr(cli.err, words), "'%s' lacks '%s'", cli.err, words);
    ck_assert_str_eq(cli.out, "");
    dlx_test_cli_deinit(&cli);
}

TEST(every_command_has_help)
{
    static const char *const commands[] = {"ls",   "info", "pub", "get", "rm",
                                           "echo", "save", "hz",  "bw",  "holds"};
    struct dlx_test_cli cli;
    dlx_test_cli_run(&cli, "/nowhere", -1, 0, DLX_TEST_WORDS("--help"));
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        struct dlx_test_cli one;
        char usage[64];
        (void)snprintf(usage, sizeof usage, "\n  %s ", commands[i]);
        ck_assert_ptr_nonnull(strstr(cli.out, usage));
        (void)snprintf(usage, sizeof usage, "Usage: dlxctl %s [OPTION...]", commands[i]);
        dlx_test_cli_run(&one, "/nowhere", -1, 0, DLX_TEST_WORDS(commands[i], "--help"));
        ck_assert_ptr_nonnull(strstr(one.out, usage));
        ck_assert_ptr_nonnull(strstr(one.out, "--json"));
        ck_assert_ptr_nonnull(strstr(one.out, "--socket=PATH"));
        dlx_test_cli_deinit(&one);
        dlx_test_cli_run(&one, "/nowhere", -1, 0, DLX_TEST_WORDS(commands[i], "-h"));
        dlx_test_cli_deinit(&one);
    }
    dlx_test_cli_deinit(&cli);
    dlx_test_cli_run(&cli, "/nowhere", -1, 0, DLX_TEST_WORDS("--version"));
    ck_assert_ptr_nonnull(strstr(cli.out, "dlxctl " DLX_VERSION_STRING));
    dlx_test_cli_deinit(&cli);
}

/* Each line "  -n, --count=N" of a command's help is ".It Fl n , Fl \\-count" in the man page. */
TEST(the_man_page_has_every_option)
{
    static const char *const commands[] = {"ls",   "info", "pub", "get",   "rm",   "echo",
                                           "save", "hz",   "bw",  "holds", "quota"};
    char path[512];
    size_t size = 0, n_short = 0;
    (void)snprintf(path, sizeof path, "%s", dlx_test_data("../../docs/man/dlxctl.1"));
    char *man = dlx_test_read_file(path, &size);
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        struct dlx_test_cli cli;
        dlx_test_cli_run(&cli, "/nowhere", -1, 0, DLX_TEST_WORDS(commands[i], "--help"));
        char *save = NULL;
        for (char *line = strtok_r(cli.out, "\n", &save); line;
             line = strtok_r(NULL, "\n", &save)) {
            char letter = 0, name[64] = "", entry[160];
            size_t at = 0;
            bool is_short = sscanf(line, " -%c, --%63[a-z-]", &letter, name) == 2;
            if (*line != ' ') /* text, which an option begins */
                continue;
            if (!is_short && sscanf(line, " --%63[a-z-]", name) != 1)
                continue;
            if (letter == '?')
                continue;
            n_short += is_short;
            at = (size_t)snprintf(entry, sizeof entry,
                                  is_short ? ".It Fl %c , Fl \\-" : ".It Fl \\-", letter);
            for (const char *p = name; *p; p++)
                at += (size_t)snprintf(entry + at, sizeof entry - at, *p == '-' ? "\\-" : "%c", *p);
            ck_assert_msg(strstr(man, entry), "%s: the man page lacks '%s'", commands[i], entry);
        }
        dlx_test_cli_deinit(&cli);
    }
    ck_assert_uint_gt(n_short, 40);
    free(man);
}

#define COMMANDS "Commands: ls, info, pub, echo, get, rm, save, hz, bw, holds, quota\n"

/* A word that is far from all of them, or long, has none that was meant. */
TEST(an_unknown_command_is_told_the_nearest_one_and_all)
{
    static const char *const meant[][2] = {
        {"lss", "ls"},    {"sl", "ls"},    {"inf", "info"},   {"publish", "pub"},
        {"ecoh", "echo"}, {"sav", "save"}, {"hold", "holds"}, {"qouta", "quota"},
        {"hz1", "hz"},    {"gte", "get"},  {"eco", "echo"},   {"ifno", "info"},
    };
    static const char *const unknown[] = {"frobnicate", "x", "", "zzzzzzzzzzzzzzzzzzzzzzzzzzzzzz"};
    char words[256];
    for (size_t i = 0; i < sizeof meant / sizeof meant[0]; i++) {
        (void)snprintf(words, sizeof words,
                       "dlxctl: unknown command '%s'; did you mean '%s'?\n" COMMANDS, meant[i][0],
                       meant[i][1]);
        expect(2, words, -1, DLX_TEST_WORDS(meant[i][0]));
    }
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        (void)snprintf(words, sizeof words, "dlxctl: unknown command '%s'\n" COMMANDS, unknown[i]);
        expect(2, words, -1, DLX_TEST_WORDS(unknown[i]));
    }
}

/* It would be .npy under another name. */
TEST(a_file_of_a_kind_that_is_not_written_is_refused)
{
    static const char *const refused[] = {"f.png", "f.pt", "{topic}-%06d.bin", "a.npy.tmp", "x/f."};
    static const char *const commands[] = {"get", "save"};
    char words[256];
    for (size_t i = 0; i < 2; i++) {
        for (size_t j = 0; j < sizeof refused / sizeof refused[0]; j++) {
            (void)snprintf(words, sizeof words,
                           "file name '%s': it must end in .npy, .npz or .safetensors", refused[j]);
            expect(2, words, -1, DLX_TEST_WORDS(commands[i], "a", refused[j]));
        }
        expect(1, "no message", -1,
               DLX_TEST_WORDS(commands[i], "a", "x.d/without", "--timeout", "0.02"));
    }
}

TEST(wrong_usage_is_status_2)
{
    const char *npy = dlx_test_npy("f4.npy");
    expect(2, "a command is missing", -1, DLX_TEST_WORDS("--json"));
    expect(2, "dlxctl echo: a topic is missing", -1, DLX_TEST_WORDS("echo"));
    expect(2, "extra argument 'b'", -1, DLX_TEST_WORDS("echo", "a", "b"));
    expect(2, "--count: '-3' is not a number from 1", -1,
           DLX_TEST_WORDS("echo", "a", "--count", "-3"));
    expect(2, "--timeout: 'soon'", -1, DLX_TEST_WORDS("echo", "a", "--timeout", "soon"));
    expect(2, "exclude each other", -1, DLX_TEST_WORDS("echo", "a", "--latest", "--reliable"));
    expect(2, "a topic and a file are needed", -1, DLX_TEST_WORDS("save", "a"));
    expect(2, "only %d, %0Nd", -1, DLX_TEST_WORDS("save", "a", "%s.npy"));
    expect(2, "--shape needs --dtype", -1, DLX_TEST_WORDS("pub", "a", npy, "--shape", "3"));
    expect(2, "--shape: '3,-1'", -1,
           DLX_TEST_WORDS("pub", "a", npy, "--dtype", "u1", "--shape", "3,-1"));
    expect(2, "--dtype: 'float33' is not known", -1,
           DLX_TEST_WORDS("pub", "a", npy, "--dtype", "float33"));
    expect(2, "--loop cannot read the standard input again", -1,
           DLX_TEST_WORDS("pub", "a", "-", "--loop", "0"));
    expect(2, "--loop: 'a.npy' is not a number from 0", -1,
           DLX_TEST_WORDS("pub", "a", "--loop", "a.npy"));
    expect(2, "--history: '1025' is not a number from 1 to 1024", -1,
           DLX_TEST_WORDS("pub", "a", npy, "--history", "1025"));
    expect(2, "--rate: '0'", -1, DLX_TEST_WORDS("pub", "a", npy, "--rate", "0"));
    expect(2, "--rate: 'file' is not a rate over 0", -1,
           DLX_TEST_WORDS("pub", "a", npy, "--rate", "file"));
    expect(2, "--newest needs a topic", -1, DLX_TEST_WORDS("info", "--newest"));
    expect(2, "--interval and --count need --watch", -1, DLX_TEST_WORDS("ls", "--count", "1"));
    expect(2, "--frobnicate", -1, DLX_TEST_WORDS("ls", "--frobnicate"));
}

TEST(no_daemon_is_said_with_the_path)
{
    static const char *const commands[][4] = {
        {"ls"},      {"info"},    {"echo", "a"}, {"save", "a", "x.npy"}, {"hz", "a"}, {"get", "a"},
        {"rm", "a"}, {"bw", "a"}, {"holds"}};
    struct dlx_test_cli cli;
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        char words[64];
        dlx_test_cli_run(&cli, "/no/such/socket", -1, 1, commands[i]);
        (void)snprintf(words, sizeof words, "dlxctl %s: ", commands[i][0]);
        ck_assert_msg(strncmp(cli.err, words, strlen(words)) == 0, "%s", cli.err);
        ck_assert_msg(strstr(cli.err, "/no/such/socket"), "%s", cli.err);
        ck_assert_msg(strstr(cli.err, "run dlpackd --socket=/no/such/socket, or unset DLX_SOCKET, "
                                      "or wait for it with --wait-daemon\n"),
                      "%s", cli.err);
        dlx_test_cli_deinit(&cli);
    }
    /* --socket is stronger than the environment, before and after the command */
    expect(1, "; start it with `dlpackd --socket=/another`, or wait for it with --wait-daemon\n",
           -1, DLX_TEST_WORDS("--socket", "/another", "ls"));
    expect(1, "/another", -1, DLX_TEST_WORDS("ls", "--socket=/another"));
    expect(1, "/another", -1, DLX_TEST_WORDS("-jS", "/another", "ls"));
}

/* A misspelt topic looks like a quiet one otherwise. */
TEST(a_topic_without_a_publisher_is_said_once_off_a_terminal)
{
    const char *const *const commands[] = {
        DLX_TEST_WORDS("hz", "typo"), DLX_TEST_WORDS("echo", "typo", "--json"),
        DLX_TEST_WORDS("bw", "typo"), DLX_TEST_WORDS("save", "typo", "x.npy")};
    char said[128];
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        struct dlx_test_cli cli;
        (void)snprintf(said, sizeof said, "dlxctl %s: typo: no publisher yet, waiting for one\n",
                       commands[i][0]);
        dlx_test_cli_start(&cli, dlx_test_cli_daemon.path, -1, commands[i]);
        dlx_test_cli_wait_said(&cli, said);
        ck_assert_int_eq(kill(cli.pid, SIGINT), 0);
        dlx_test_cli_wait(&cli);
        ck_assert_ptr_eq(strstr(cli.err, said), cli.err);
        ck_assert_ptr_null(strstr(cli.err + strlen(said), "no publisher yet"));
        dlx_test_cli_deinit(&cli);
    }
}

static const char *waits_for(void)
{
    static char words[400];
    (void)snprintf(words, sizeof words, "waiting for dlpackd at %s", dlx_test_cli_daemon.path);
    return words;
}

/* Commands that look, publish and receive; the option stands before or after the command. */
TEST(a_daemon_that_is_not_up_yet_is_waited_for)
{
    const char *const *const commands[] = {
        DLX_TEST_WORDS("--wait-daemon", "ls"), DLX_TEST_WORDS("info", "--wait-daemon=10min"),
        DLX_TEST_WORDS("pub", "a", dlx_test_npy("f4.npy"), "--wait-daemon", "--wait", "1"),
        DLX_TEST_WORDS("echo", "a", "--count", "1", "--wait-daemon")};
    struct dlx_test_cli cli[4];
    char said[512];
    ck_assert_int_eq(dlx_test_daemon_stop(&dlx_test_cli_daemon), 0);
    for (size_t i = 0; i < 4; i++) {
        dlx_test_cli_start(&cli[i], dlx_test_cli_daemon.path, -1, commands[i]);
        dlx_test_cli_wait_said(&cli[i], waits_for());
    }
    dlx_test_daemon_start(&dlx_test_cli_daemon, NULL);
    for (size_t i = 0; i < 4; i++) {
        dlx_test_cli_wait(&cli[i]);
        ck_assert_msg(cli[i].status == 0, "%s", cli[i].err);
        (void)snprintf(said, sizeof said, "dlxctl %s: %s%s\n", i == 0 ? "ls" : commands[i][0],
                       waits_for(), i == 1 ? ", at most 10 min 0 s" : "");
        ck_assert_ptr_eq(strstr(cli[i].err, said), cli[i].err);
        ck_assert_ptr_null(strstr(cli[i].err + strlen(said), "waiting for dlpackd")); /* once */
    }
    ck_assert_ptr_nonnull(strstr(cli[1].out, "daemon "));
    ck_assert_ptr_nonnull(strstr(cli[3].out, "float32"));
    for (size_t i = 0; i < 4; i++)
        dlx_test_cli_deinit(&cli[i]);
}

TEST(a_wait_for_a_daemon_ends_in_time_and_by_a_signal)
{
    struct dlx_test_cli cli;
    expect(1, "dlxctl echo: waited 0.02 s: no dlpackd at /no/such/socket: No such file", -1,
           DLX_TEST_WORDS("-S", "/no/such/socket", "echo", "a", "--wait-daemon=20ms"));
    expect(2, "--wait-daemon: must be more than 0", -1, DLX_TEST_WORDS("ls", "--wait-daemon=0"));
    /* echo notes signals for later; nothing is to be done later here */
    dlx_test_cli_start(&cli, "/no/such/socket", -1, DLX_TEST_WORDS("echo", "a", "--wait-daemon"));
    dlx_test_cli_wait_said(&cli, "waiting for dlpackd at /no/such/socket\n");
    ck_assert_int_eq(kill(cli.pid, SIGINT), 0);
    dlx_test_cli_finish(&cli, 130);
    dlx_test_cli_deinit(&cli);
}

/* Where no socket is named, echo would start a private daemon, here by a program that does not
 * exist. */
TEST(a_command_that_waits_for_a_daemon_starts_none)
{
    struct dlx_test_cli cli;
    ck_assert_int_eq(setenv("XDG_RUNTIME_DIR", dlx_test_cli_files, 1), 0);
    ck_assert_int_eq(setenv("DLX_AUTOSPAWN", "yes", 1), 0);
    ck_assert_int_eq(setenv("DLX_DAEMON", "/no/such/dlpackd", 1), 0);
    dlx_test_cli_run(&cli, "", -1, 1, DLX_TEST_WORDS("echo", "a"));
    ck_assert_ptr_nonnull(strstr(cli.err, "/no/such/dlpackd"));
    dlx_test_cli_deinit(&cli);
    dlx_test_cli_start(&cli, "", -1, DLX_TEST_WORDS("echo", "a", "--wait-daemon"));
    dlx_test_cli_wait_said(&cli, "waiting for dlpackd\n");
    ck_assert_int_eq(kill(cli.pid, SIGINT), 0);
    dlx_test_cli_finish(&cli, 130);
    ck_assert_str_eq(cli.err, "dlxctl echo: waiting for dlpackd\n");
    dlx_test_cli_deinit(&cli);
}

TEST(topics_that_break_the_rules_are_named)
{
    expect(1, "a//b", -1, DLX_TEST_WORDS("echo", "a//b"));
    expect(1, "dlxctl pub: topic name \"a b\" has", -1,
           DLX_TEST_WORDS("pub", "a b", dlx_test_npy("f4.npy")));
    expect(1, "dlxctl hz: topic name \"../x\" has", -1, DLX_TEST_WORDS("hz", "../x"));
    expect(1, "dlxctl echo: subscription to a: history 1025 must be at most 1024\n", -1,
           DLX_TEST_WORDS("echo", "a", "--history", "1025"));
    expect(1, "dlxctl info: nobody/here: no publisher", -1, DLX_TEST_WORDS("info", "nobody/here"));
}

/* A word of the error that is part of another one is not the topic. */
TEST(an_error_names_its_topic_once)
{
    expect(1, "dlxctl rm: nothing is retained on w/policy\n", -1, DLX_TEST_WORDS("rm", "w/policy"));
    expect(1, "dlxctl rm: topic name \"a//b\" has", -1, DLX_TEST_WORDS("rm", "a//b"));
    expect(1, "dlxctl pub: i: no/such: No such file", -1, DLX_TEST_WORDS("pub", "i", "no/such"));
    expect(1, "dlxctl rm: nothing is retained on i\n", -1, DLX_TEST_WORDS("rm", "i"));
}

TEST(files_that_lie_leave_nothing_behind)
{
    static const char lie[] =
        "\x93NUMPY\x01\x00\x47\x00"
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776,), } \n"
        "short";
    struct dlx_test_cli cli;
    int in = dlx_test_memfd(lie, sizeof lie - 1);
    expect(1,
           "standard input: '<f8' (1099511627776,) should have 8796093022208 bytes, the file has 5",
           in, DLX_TEST_WORDS("pub", "a"));
    (void)close(in);
    in = dlx_test_memfd("12345", 5);
    expect(1, "has 5 bytes, which is not a whole number of tensors of 8 bytes (float32 (2,))", in,
           DLX_TEST_WORDS("pub", "a", "--dtype", "float32", "--shape", "2"));
    (void)close(in);
    in = dlx_test_memfd("12345", 5);
    expect(1, "standard input: has bytes, but uint8 (2, 0) has none", in,
           DLX_TEST_WORDS("pub", "a", "--dtype", "uint8", "--shape", "2,0"));
    (void)close(in);
    expect(1, "Python objects", -1, DLX_TEST_WORDS("pub", "a", dlx_test_npy("objects.npy")));
    expect(1, "no/such: No such file or directory", -1, DLX_TEST_WORDS("pub", "a", "no/such"));
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0, DLX_TEST_WORDS("ls"));
    ck_assert_str_eq(cli.err, "dlxctl ls: no publishers\n");
    dlx_test_cli_deinit(&cli);
}

/* On a terminal, and for programs: a summary is for what was published. */
TEST(pub_says_that_nobody_was_subscribed)
{
    struct dlx_test_cli cli;
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0,
                     DLX_TEST_WORDS("pub", "a", dlx_test_npy("f4.npy")));
    ck_assert_str_eq(cli.out, "");
    ck_assert_str_eq(cli.err, "dlxctl pub: a: nobody was subscribed, and nothing is retained\n");
    dlx_test_cli_deinit(&cli);
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0,
                     DLX_TEST_WORDS("pub", "a", dlx_test_npy("f4.npy"), "--retain", "1"));
    ck_assert_str_eq(cli.err, "");
    dlx_test_cli_deinit(&cli);
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 0, DLX_TEST_WORDS("rm", "a"));
    dlx_test_cli_deinit(&cli);
}

TEST(pub_that_publishes_nothing_has_no_summary)
{
    const char *npy = dlx_test_npy("f4.npy");
    struct dlx_test_cli cli;
    dlx_test_cli_run_on_terminal(&cli, dlx_test_cli_daemon.path, 1,
                                 DLX_TEST_WORDS("pub", "a", "no/such"));
    ck_assert_str_eq(cli.err, "dlxctl pub: a: no/such: No such file or directory\r\n");
    dlx_test_cli_deinit(&cli);
    expect(1, "no/such: No such file or directory", -1,
           DLX_TEST_WORDS("pub", "a", "no/such", "--json"));
    /* what came before a failure is told */
    dlx_test_cli_run_on_terminal(&cli, dlx_test_cli_daemon.path, 1,
                                 DLX_TEST_WORDS("pub", "a", npy, "no/such"));
    ck_assert_ptr_nonnull(strstr(cli.err, "no/such: No such file or directory\r\n"));
    ck_assert_ptr_nonnull(strstr(cli.err, "a: 1 message, 96 B in "));
    dlx_test_cli_deinit(&cli);
    dlx_test_cli_run(&cli, dlx_test_cli_daemon.path, -1, 1,
                     DLX_TEST_WORDS("pub", "a", npy, "no/such", "--json"));
    ck_assert_ptr_nonnull(strstr(cli.out, "\"published\": 1,"));
    dlx_test_cli_deinit(&cli);
}

TEST(more_memory_than_there_is)
{
    int in = dlx_test_memfd("", 0);
    /* raw bytes of the standard input, whose size only a regular file tells */
    expect(1, "dlxctl pub: a: ", in,
           DLX_TEST_WORDS("pub", "a", "--dtype", "u1", "--shape", "4611686018427387904"));
    (void)close(in);
    in = dlx_test_memfd("x", 1);
    expect(1, "float64 (9223372036854775807,) is over the limit of 2^63 - 1 bytes", in,
           DLX_TEST_WORDS("pub", "a", "--dtype", "f8", "--shape", "9223372036854775807"));
    (void)close(in);
    pid_t feeder = -1;
    in = dlx_test_pipe("some bytes", 10, &feeder);
    expect(1, "no memory for 4.0 EiB: a tensor or a set may have at most 64.0 TiB", in,
           DLX_TEST_WORDS("pub", "a", "--dtype", "u1", "--shape", "4611686018427387904"));
    (void)close(in);
}

TEST(a_reliable_subscriber_needs_a_publisher_that_blocks)
{
    struct dlx_test_cli pub, echo;
    dlx_test_cli_start(&pub, dlx_test_cli_daemon.path, -1,
                       DLX_TEST_WORDS("pub", "a", dlx_test_npy("f4.npy"), "--hold", "--wait", "1"));
    dlx_test_cli_start(&echo, dlx_test_cli_daemon.path, -1, DLX_TEST_WORDS("echo", "a"));
    dlx_test_cli_wait_lines(&echo, 1);
    expect(1, "dlxctl echo: subscription to a: ", -1,
           DLX_TEST_WORDS("echo", "a", "--reliable", "--count", "1"));
    ck_assert_int_eq(kill(pub.pid, SIGINT), 0);
    ck_assert_int_eq(kill(echo.pid, SIGINT), 0);
    dlx_test_cli_deinit(&pub);
    dlx_test_cli_deinit(&echo);
}

TEST(silence_is_a_failure_when_asked_for)
{
    char path[400];
    expect(1, "dlxctl echo: quiet: no message within 20.0 ms: no publisher", -1,
           DLX_TEST_WORDS("echo", "quiet", "--timeout", "0.02"));
    (void)snprintf(path, sizeof path, "%s/never.npy", dlx_test_cli_files);
    expect(1, "no message within", -1, DLX_TEST_WORDS("save", "quiet", path, "--timeout", "0.02"));
    ck_assert_uint_eq(dlx_test_files_count(dlx_test_cli_files), 0);
    expect(1, "dlxctl pub: a: 0 of 2 subscribers attached within 20.0 ms", -1,
           DLX_TEST_WORDS("pub", "a", dlx_test_npy("f4.npy"), "--wait", "2", "--timeout", "0.02"));
}

/* Interrupt a command once it prints, or is known to the daemon. */
static int interrupt_after_line(const char *const *words, int signal)
{
    struct dlx_test_cli pub, cli;
    dlx_test_cli_start(&cli, dlx_test_cli_daemon.path, -1, words);
    dlx_test_cli_start(&pub, dlx_test_cli_daemon.path, -1,
                       DLX_TEST_WORDS("pub", "a", dlx_test_npy("f4.npy"), "--wait", "1"));
    dlx_test_cli_wait_lines(&cli, 1);
    ck_assert_int_eq(kill(cli.pid, signal), 0);
    dlx_test_cli_wait(&cli);
    int status = cli.status;
    dlx_test_cli_deinit(&cli);
    dlx_test_cli_deinit(&pub);
    return status;
}

TEST(interrupting_is_success_only_for_what_has_no_end)
{
    char path[400];
    (void)snprintf(path, sizeof path, "%s/%%d.npy", dlx_test_cli_files);
    ck_assert_int_eq(interrupt_after_line(DLX_TEST_WORDS("echo", "a"), SIGINT), 0);
    ck_assert_int_eq(interrupt_after_line(DLX_TEST_WORDS("echo", "a"), SIGTERM), 0);
    ck_assert_int_eq(interrupt_after_line(DLX_TEST_WORDS("echo", "a", "--count", "5"), SIGINT),
                     130);
    ck_assert_int_eq(
        interrupt_after_line(DLX_TEST_WORDS("save", "a", path, "--count", "5", "--json"), SIGTERM),
        143);
    ck_assert_uint_eq(dlx_test_files_count(dlx_test_cli_files), 1);
}

TEST(ctrl_c_while_pub_waits_for_subscribers_is_not_an_error_of_its_own)
{
    struct dlx_test_cli pub, ls;
    bool listed = false;
    dlx_test_cli_start(&pub, dlx_test_cli_daemon.path, -1,
                       DLX_TEST_WORDS("pub", "a", dlx_test_npy("f4.npy"), "--wait", "1"));
    while (!listed) {
        dlx_test_cli_run(&ls, dlx_test_cli_daemon.path, -1, 0, DLX_TEST_WORDS("ls", "--json"));
        listed = strstr(ls.out, "\"published\"") != NULL;
        dlx_test_cli_deinit(&ls);
    }
    ck_assert_int_eq(kill(pub.pid, SIGINT), 0);
    dlx_test_cli_finish(&pub, 130);
    ck_assert_str_eq(pub.err, "");
    dlx_test_cli_deinit(&pub);
}

TEST(a_full_disk_is_noticed)
{
    struct dlx_test_cli save, pub;
    dlx_test_cli_start(&save, dlx_test_cli_daemon.path, -1,
                       DLX_TEST_WORDS("save", "a", "/dev/full"));
    dlx_test_cli_run(&pub, dlx_test_cli_daemon.path, -1, 0,
                     DLX_TEST_WORDS("pub", "a", dlx_test_npy("f4.npy"), "--wait", "1"));
    dlx_test_cli_wait(&save);
    ck_assert_int_eq(save.status, 1);
    ck_assert_str_eq(dlx_test_cli_said(&save),
                     "dlxctl save: a: /dev/full: write: No space left on device\n");
    dlx_test_cli_deinit(&save);
    dlx_test_cli_deinit(&pub);
}

/* Nothing else may get their numbers: what is printed would go to the daemon, or what it says be
 * read. */
TEST(closed_standard_descriptors_are_noticed)
{
    expect(1, "dlxctl ls: writing to standard output: Bad file descriptor", DLX_TEST_CLOSED,
           DLX_TEST_WORDS("ls", "--json"));
    expect(1, "dlxctl pub: a: standard input: Bad file descriptor", DLX_TEST_CLOSED,
           DLX_TEST_WORDS("pub", "a"));
}

int main(void)
{
    return dlx_test_run_case(dlx_test_cli_case("dlxctl"));
}
