/* SPDX-License-Identifier: Apache-2.0 */

/* The modes of the terminal, which come back whatever ends the program. */

#include "cli/terminal.h"
#include "cli/wait.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

/* How the terminal was, what gives its other modes back, and what sets them again: for signal
 * handlers. */
static struct termios saved, taken;
static char leave_text[256], enter_text[64];
static volatile sig_atomic_t is_open, has_resumed;

static void copy_text(char *to, size_t size, const char *from)
{
    (void)snprintf(to, size, "%s", from);
}

/* ---- signals: only calls that a handler may make --------------------------------------------- */

static void write_text(const char *text)
{
    (void)!write(STDOUT_FILENO, text, strlen(text));
}

static void leave_at_signal(int number)
{
    if (is_open) {
        is_open = 0;
        write_text(leave_text);
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &saved);
    }
    (void)signal(number, SIG_DFL);
    (void)raise(number);
}

static void catch_last_signals(void)
{
    static const int numbers[] = {SIGABRT, SIGBUS,  SIGFPE,  SIGHUP,  SIGILL,
                                  SIGQUIT, SIGSEGV, SIGSYS,  SIGTRAP, SIGXCPU,
                                  SIGALRM, SIGPIPE, SIGUSR1, SIGUSR2, SIGVTALRM};
    struct sigaction action = {.sa_handler = leave_at_signal, .sa_flags = SA_NODEFER}, before;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler == SIG_DFL)
            (void)sigaction(numbers[i], &action, NULL);
    wait_at_second_signal(leave_at_signal);
}

static void catch_stop(void);

/* The program stops in raise(). */
static void on_stop(int number)
{
    int error = errno;
    if (is_open) {
        write_text(leave_text);
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &saved);
    }
    (void)signal(number, SIG_DFL);
    (void)raise(number);
    catch_stop();
    if (is_open) {
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &taken);
        write_text(enter_text);
    }
    has_resumed = 1;
    errno = error;
}

static void catch_stop(void)
{
    struct sigaction action = {.sa_handler = on_stop, .sa_flags = SA_NODEFER | SA_RESTART};
    (void)sigaction(SIGTSTP, &action, NULL);
}

/* ---- modes ----------------------------------------------------------------------------------- */

void terminal_keep(const char *leave)
{
    (void)tcgetattr(STDIN_FILENO, &saved);
    copy_text(leave_text, sizeof leave_text, leave);
    is_open = 1;
    catch_last_signals();
}

void terminal_forget(void)
{
    is_open = 0;
}

void terminal_take(const char *enter, const char *leave)
{
    struct sigaction before;
    terminal_keep(leave);
    taken = saved;
    taken.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    taken.c_cc[VMIN] = 1;
    taken.c_cc[VTIME] = 0;
    copy_text(enter_text, sizeof enter_text, enter);
    if (sigaction(SIGTSTP, NULL, &before) == 0 && before.sa_handler != SIG_IGN)
        catch_stop();
    (void)tcsetattr(STDIN_FILENO, TCSADRAIN, &taken);
    write_text(enter_text);
}

void terminal_restore(void)
{
    if (!is_open)
        return;
    write_text(leave_text);
    (void)tcsetattr(STDIN_FILENO, TCSAFLUSH, &saved);
    is_open = 0;
}

bool terminal_has_resumed(void)
{
    bool resumed = has_resumed;
    has_resumed = 0;
    return resumed;
}
