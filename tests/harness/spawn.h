/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_SPAWN_H
#define DLX_TESTS_HARNESS_SPAWN_H

/*
 * Private daemons that dlx_connect() starts: each test has a runtime folder of its own, the daemon
 * of this build, and at the end no daemon, no file in the folder, no open descriptor and no child.
 */

#include "tests/harness/stream.h"

/* The runtime folder, and the paths that a daemon has there. */
extern char dlx_test_spawn_dir[256];
extern char dlx_test_spawn_socket[300];

/* A test case with these fixtures. */
TCase *dlx_test_spawn_case(const char *name);

/* Path of a program of this build. Static, two at once. */
const char *dlx_test_spawn_program(const char *name);
/*
 * Each test has a /run and a /tmp of its own, both empty but for the daemon of this build as
 * DLX_TEST_SPAWN_DAEMON, which is $DLX_DAEMON then; and no runtime folder. The test leaves them as
 * they are. Returns NULL, and prints why, where the kernel does not allow it.
 */
#define DLX_TEST_SPAWN_DAEMON "/run/daemon"
TCase *dlx_test_spawn_hidden_case(const char *name);
/* Connect where the library finds, or starts, a daemon: to be dropped by the caller. */
struct dlx_client *dlx_test_spawn_connect(void);
/* dlx_connect() with these arguments must fail with the code, and the word in its message. */
void dlx_test_spawn_fails(uint32_t autospawn, int64_t timeout_ns, int code, const char *word);
pid_t dlx_test_spawn_pid(struct dlx_client *c);
/* The daemon stays for longer than an idle one does. */
void dlx_test_spawn_stays(pid_t pid);
/* Wait until the process, which need not be a child, has ended. */
void dlx_test_spawn_wait_end(pid_t pid);
/* The same for whichever daemon is in the folder. */
void dlx_test_spawn_wait_empty(void);

/* A shell script in the folder, as $DLX_DAEMON. The script's first line may wait: see the FIFOs. */
void dlx_test_spawn_script(const char *text);
/* A FIFO in the folder. */
void dlx_test_spawn_fifo(const char *name);
/* Write a byte to it, or read one: waits for the other side. */
void dlx_test_spawn_say(const char *name);
void dlx_test_spawn_hear(const char *name);
/* Read the text of a file in the folder. */
void dlx_test_spawn_read(const char *name, char *ret, size_t size);
/* Remove files of the test. */
void dlx_test_spawn_remove(const char *name);

#endif
