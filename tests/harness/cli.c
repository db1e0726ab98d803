/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/cli.h"
#include <dirent.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>

void (*dlx_test_cli_prepare)(void);

static const char *program(void)
{
    static char path[512];
    const char *build = getenv("BUILD");
    if (!build)
        build = getenv("DLX_BUILD");
    (void)snprintf(path, sizeof path, "%s/dlxctl", build ? build : "build");
    return path;
}

/* Between fork and exec: no more than the calls that are allowed there. */
static void become(const char *socket, int in, int out, int err, const char *const *words,
                   pid_t parent)
{
    char *argv[64] = {(char *)(uintptr_t) "dlxctl"};
    for (size_t i = 0; words[i] && i < 62; i++)
        argv[i + 1] = (char *)(uintptr_t)words[i];
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(126);
    if (in < 0)
        in = open("/dev/null", O_RDONLY);
    (void)dup2(in, STDIN_FILENO);
    (void)dup2(out, STDOUT_FILENO);
    (void)dup2(err, STDERR_FILENO);
    (void)signal(SIGINT, SIG_DFL); /* in a background job the signal is ignored */
    (void)setenv("DLX_SOCKET", socket, 1);
    if (dlx_test_cli_prepare)
        dlx_test_cli_prepare();
    (void)setenv("TERM", isatty(STDOUT_FILENO) ? "xterm" : "dumb", 1);
    execv(program(), argv);
    _exit(127);
}

/* `take_out`: output to the second end of a pipe, or of a terminal, is read from the first end. */
static void start_with(struct dlx_test_cli *cli, const char *socket, int stdin_fd,
                       const int take_out[2], int err_take_fd, const char *const *words)
{
    const int *out = take_out;
    *cli = (struct dlx_test_cli){.pid = -1, .out_fd = -1, .err_fd = err_take_fd, .status = -1};
    ck_assert_int_ge(cli->err_fd, 0);
    cli->out = calloc(1, DLX_TEST_CLI_OUTPUT_SIZE + 1);
    ck_assert_ptr_nonnull(cli->out);
    pid_t parent = getpid();
    cli->pid = fork();
    ck_assert_int_ge(cli->pid, 0);
    if (cli->pid == 0)
        become(socket, stdin_fd, out[1], cli->err_fd, words, parent);
    (void)close(out[1]);
    cli->out_fd = out[0];
}

static void start(struct dlx_test_cli *cli, const char *socket, int stdin_fd, int err_take_fd,
                  const char *const *words)
{
    int out[2];
    ck_assert_int_eq(pipe2(out, O_CLOEXEC), 0);
    start_with(cli, socket, stdin_fd, out, err_take_fd, words);
}

void dlx_test_cli_start(struct dlx_test_cli *cli, const char *socket, int stdin_fd,
                        const char *const *words)
{
    start(cli, socket, stdin_fd, memfd_create("stderr", MFD_CLOEXEC), words);
}

static void check_status(const struct dlx_test_cli *cli, int status)
{
    ck_assert_msg(cli->status == status, "status %d; printed: %.2000s; said: %.2000s", cli->status,
                  cli->out, cli->err);
}

void dlx_test_cli_finish(struct dlx_test_cli *cli, int status)
{
    dlx_test_cli_wait(cli);
    check_status(cli, status);
}

/* This process's end, and that of the program on the terminal. */
static void open_terminal(int ret[2], int flags, unsigned short columns)
{
    char name[64];
    struct winsize size = {.ws_row = 24, .ws_col = columns};
    ret[0] = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | flags);
    ck_assert_int_ge(ret[0], 0);
    ck_assert_int_eq(grantpt(ret[0]), 0);
    ck_assert_int_eq(unlockpt(ret[0]), 0);
    ck_assert_int_eq(ptsname_r(ret[0], name, sizeof name), 0);
    ret[1] = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
    ck_assert_int_ge(ret[1], 0);
    ck_assert_int_eq(ioctl(ret[1], TIOCSWINSZ, &size), 0);
}

struct dlx_test_cli dlx_test_cli_run_on_screen(const char *socket, unsigned short columns,
                                               int status, const char *const *words)
{
    struct dlx_test_cli cli;
    int ends[2];
    open_terminal(ends, 0, columns);
    start_with(&cli, socket, -1, ends, memfd_create("stderr", MFD_CLOEXEC), words);
    dlx_test_cli_finish(&cli, status);
    return cli;
}

struct dlx_test_cli dlx_test_cli_run_on_terminal(const char *socket, int status,
                                                 const char *const *words)
{
    struct dlx_test_cli cli;
    int ends[2], terminal;
    open_terminal(ends, O_NONBLOCK, 80);
    terminal = ends[0];
    start(&cli, socket, -1, ends[1], words);
    dlx_test_cli_wait(&cli);
    free(cli.err);
    cli.err = calloc(1, 4096);
    ck_assert_ptr_nonnull(cli.err);
    /* The last slave closes here: what was written arrives in pieces, and then EIO. */
    cli.err_fd = dlx__close(cli.err_fd);
    struct pollfd p = {.fd = terminal, .events = POLLIN};
    for (size_t size = 0; size < 4095;) {
        ck_assert_int_eq(poll(&p, 1, PATIENCE_MS), 1);
        ssize_t n = read(terminal, cli.err + size, 4095 - size);
        if (n <= 0)
            break;
        size += (size_t)n;
    }
    (void)close(terminal);
    check_status(&cli, status);
    return cli;
}

static void give_up(struct dlx_test_cli *cli, const char *why)
{
    char err[4096] = "";
    ssize_t n = pread(cli->err_fd, err, sizeof err - 1, 0);
    err[n > 0 ? n : 0] = '\0';
    (void)kill(cli->pid, SIGKILL);
    ck_abort_msg("dlxctl: %s; printed: %.2000s; said: %s", why, cli->out, err);
}

/* Read some of its stdout; false at the end. */
static bool read_some(struct dlx_test_cli *cli)
{
    struct pollfd p = {.fd = cli->out_fd, .events = POLLIN};
    if (poll(&p, 1, PATIENCE_MS) <= 0)
        give_up(cli, "no output and no end");
    if (cli->out_size == DLX_TEST_CLI_OUTPUT_SIZE)
        give_up(cli, "too much output");
    ssize_t n =
        read(cli->out_fd, cli->out + cli->out_size, DLX_TEST_CLI_OUTPUT_SIZE - cli->out_size);
    if (n <= 0)
        return false;
    cli->out_size += (size_t)n;
    return true;
}

static size_t n_lines(const struct dlx_test_cli *cli)
{
    size_t n = 0;
    for (size_t i = 0; i < cli->out_size; i++)
        n += cli->out[i] == '\n';
    return n;
}

void dlx_test_cli_wait_lines(struct dlx_test_cli *cli, size_t n)
{
    while (n_lines(cli) < n)
        if (!read_some(cli))
            give_up(cli, "ended before it printed what it should");
}

/* No event tells of a write to a memfd, so the loop looks every millisecond. */
void dlx_test_cli_wait_said(struct dlx_test_cli *cli, const char *words)
{
    char said[4096] = "";
    for (int i = 0; !strstr(said, words); i++) {
        siginfo_t end = {.si_pid = 0};
        (void)waitid(P_PID, (id_t)cli->pid, &end, WEXITED | WNOHANG | WNOWAIT);
        ssize_t n = pread(cli->err_fd, said, sizeof said - 1, 0);
        said[n > 0 ? n : 0] = '\0';
        if (!strstr(said, words) && (end.si_pid != 0 || i == PATIENCE_MS))
            give_up(cli, "it did not say what it should");
        (void)poll(NULL, 0, 1);
    }
}

void dlx_test_cli_wait(struct dlx_test_cli *cli)
{
    int status = 0;
    struct stat st;
    while (read_some(cli))
        ;
    ck_assert_int_eq(waitpid(cli->pid, &status, 0), cli->pid);
    cli->status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    cli->pid = -1;
    ck_assert_int_eq(fstat(cli->err_fd, &st), 0);
    cli->err = calloc(1, (size_t)st.st_size + 1);
    ck_assert_ptr_nonnull(cli->err);
    if (st.st_size > 0) /* of a terminal it is 0 */
        ck_assert_int_eq(pread(cli->err_fd, cli->err, (size_t)st.st_size, 0), st.st_size);
}

void dlx_test_cli_deinit(struct dlx_test_cli *cli)
{
    if (cli->pid > 0)
        dlx_test_cli_wait(cli);
    dlx__close(cli->out_fd);
    dlx__close(cli->err_fd);
    free(cli->out);
    free(cli->err);
}

void dlx_test_cli_run(struct dlx_test_cli *cli, const char *socket, int stdin_fd, int status,
                      const char *const *words)
{
    dlx_test_cli_start(cli, socket, stdin_fd, words);
    dlx_test_cli_finish(cli, status);
}

json_t *dlx_test_cli_json(const struct dlx_test_cli *cli)
{
    json_error_t e;
    json_t *json = json_loads(cli->out, JSON_REJECT_DUPLICATES, &e);
    ck_assert_msg(json != NULL, "no JSON: %s in %.2000s", e.text, cli->out);
    return json;
}

json_t *dlx_test_cli_json_line(const struct dlx_test_cli *cli, size_t n)
{
    json_error_t e;
    const char *line = cli->out;
    for (size_t i = 0; i < n; i++) {
        line = strchr(line, '\n');
        ck_assert_ptr_nonnull(line);
        line++;
    }
    const char *end = strchr(line, '\n');
    ck_assert_ptr_nonnull(end);
    json_t *json = json_loadb(line, (size_t)(end - line), JSON_REJECT_DUPLICATES, &e);
    ck_assert_msg(json != NULL, "no JSON: %s in %.2000s", e.text, line);
    return json;
}

int dlx_test_memfd(const void *data, size_t size)
{
    int fd = memfd_create("data", MFD_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, data, size), (ssize_t)size);
    ck_assert_int_eq(lseek(fd, 0, SEEK_SET), 0);
    return fd;
}

int dlx_test_pipe(const void *data, size_t size, pid_t *ret_pid)
{
    int fds[2];
    ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        const char *p = data;
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)close(fds[0]);
        while (size > 0) {
            ssize_t n = write(fds[1], p, size);
            if (n <= 0)
                _exit(1); /* SIGPIPE ends the program before */
            p += n;
            size -= (size_t)n;
        }
        _exit(0);
    }
    (void)close(fds[1]);
    *ret_pid = pid;
    return fds[0];
}

char *dlx_test_read_file(const char *path, size_t *ret_size)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ck_assert_msg(fd >= 0, "%s: %s", path, strerror(errno));
    ck_assert_int_eq(fstat(fd, &st), 0);
    char *data = malloc((size_t)st.st_size + 1);
    ck_assert_ptr_nonnull(data);
    ck_assert_int_eq(read(fd, data, (size_t)st.st_size), st.st_size);
    (void)close(fd);
    data[st.st_size] = '\0'; /* so that it can be searched as text */
    *ret_size = (size_t)st.st_size;
    return data;
}

const char *dlx_test_data(const char *name)
{
    static char paths[4][512];
    static unsigned next;
    const char *top = getenv("SRCDIR");
    char *path = paths[next++ % 4];
    (void)snprintf(path, sizeof paths[0], "%s/tests/data/%s", top ? top : ".", name);
    return path;
}

const char *dlx_test_npy(const char *name)
{
    char path[256];
    (void)snprintf(path, sizeof path, "npy/%s", name);
    return dlx_test_data(path);
}

static char folder[256];

static size_t each_file(const char *path, bool remove)
{
    char file[600];
    size_t n = 0;
    DIR *dir = opendir(path);
    ck_assert_ptr_nonnull(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        (void)snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
        if (remove)
            (void)unlink(file);
        n++;
    }
    (void)closedir(dir);
    return n;
}

static void make_folder(void)
{
    const char *tmp = getenv("TMPDIR");
    (void)snprintf(folder, sizeof folder, "%s/files-XXXXXX", tmp ? tmp : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(folder));
}

/* The next test begins without the files of one that failed. */
static void empty_folder(void)
{
    (void)each_file(folder, true);
}

static void remove_folder(void)
{
    empty_folder();
    (void)rmdir(folder);
}

void dlx_test_files_fixture(TCase *tcase)
{
    tcase_add_unchecked_fixture(tcase, make_folder, remove_folder);
    tcase_add_checked_fixture(tcase, empty_folder, NULL);
}

const char *dlx_test_file(const char *name)
{
    static char paths[4][512];
    static unsigned next;
    char *path = paths[next++ % 4];
    (void)snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

const char *dlx_test_file_write(const char *name, const void *data, size_t size)
{
    const char *path = dlx_test_file(name);
    FILE *file = fopen(path, "wbe");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(data, 1, size, file), size);
    ck_assert_int_eq(fclose(file), 0);
    return path;
}

size_t dlx_test_n_files(void)
{
    return each_file(folder, false);
}

size_t dlx_test_files_count(const char *path)
{
    return each_file(path, false);
}
