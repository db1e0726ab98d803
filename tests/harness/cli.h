/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_CLI_H
#define DLX_TESTS_HARNESS_CLI_H

/*
 * dlxctl as a program: start it, read what it prints, wait for it. A failure ends the test by
 * ck_assert. Nothing here sleeps: everything waits for output or for an end, 30 seconds at most.
 */

#include "tests/harness/daemon.h"
#include <jansson.h>

#define DLX_TEST_CLI_OUTPUT_SIZE (1 << 20)

struct dlx_test_cli {
    pid_t pid;
    int out_fd, err_fd; /* its stdout, a pipe; its stderr, a memfd */
    size_t out_size;
    char *out; /* all of stdout so far, NUL-terminated; likewise stderr after waiting */
    char *err;
    int status; /* exit status, 128 + signal when it was killed; after waiting */
};

/* Start dlxctl with these words, NULL-terminated; $DLX_SOCKET is `socket`. `stdin_fd` -1: nothing
 * to read. */
void dlx_test_cli_start(struct dlx_test_cli *cli, const char *socket, int stdin_fd,
                        const char *const *words);
/* If not NULL, each dlxctl that is started calls this before it is executed. */
extern void (*dlx_test_cli_prepare)(void);
/* Wait until dlxctl has printed this many lines. */
void dlx_test_cli_wait_lines(struct dlx_test_cli *cli, size_t n);
/* Wait until its stderr, which is no terminal, has these words. */
void dlx_test_cli_wait_said(struct dlx_test_cli *cli, const char *words);
/* Wait for its end; sets status, out and err, which dlx_test_cli_deinit() frees. */
void dlx_test_cli_wait(struct dlx_test_cli *cli);
/* Waits first if the test did not. */
void dlx_test_cli_deinit(struct dlx_test_cli *cli);
/* A variable declared so is released at the end of its block. */
#define auto_cli DLX_TEST_AUTO(dlx_test_cli_deinit) struct dlx_test_cli
/* Start, wait, and check the status. */
void dlx_test_cli_run(struct dlx_test_cli *cli, const char *socket, int stdin_fd, int status,
                      const char *const *words);
/* The same with a terminal as its stderr; lines end in "\r\n" there. */
struct dlx_test_cli dlx_test_cli_run_on_terminal(const char *socket, int status,
                                                 const char *const *words);
/* With a terminal of this many columns as its stdout. */
struct dlx_test_cli dlx_test_cli_run_on_screen(const char *socket, unsigned short columns,
                                               int status, const char *const *words);
/* Wait for its end, which is to have this status. */
void dlx_test_cli_finish(struct dlx_test_cli *cli, int status);

/* The output as JSON; the caller drops the reference. Line `n` from 0 of several. */
json_t *dlx_test_cli_json(const struct dlx_test_cli *cli);
json_t *dlx_test_cli_json_line(const struct dlx_test_cli *cli, size_t n);

/* A memfd with this content, at its beginning; and a pipe with it, from a child of the caller (to
 * be waited for). */
int dlx_test_memfd(const void *data, size_t size);
int dlx_test_pipe(const void *data, size_t size, pid_t *ret_pid);

/* The whole of a file; the caller frees. */
char *dlx_test_read_file(const char *path, size_t *ret_size);
/* A path below tests/data, or tests/data/npy; static, four at once. */
const char *dlx_test_data(const char *name);
const char *dlx_test_npy(const char *name);

/* A folder under $TMPDIR for the tests of a case: each begins with an empty one. */
void dlx_test_files_fixture(TCase *tcase);
/* The path of a file in it: static, four at once; the file's content; and the number of files. */
const char *dlx_test_file(const char *name);
const char *dlx_test_file_write(const char *name, const void *data, size_t size);
size_t dlx_test_n_files(void);
/* Files in any folder. */
size_t dlx_test_files_count(const char *path);

#endif
