/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_COMMON_LISTEN_H
#define DLX_COMMON_LISTEN_H

/* A listening socket at a path, and its lock file (PATH.lock), which keeps a second program off the
 * path: the lock lives as long as the process, so a socket file without a locked file is stale.
 * Only the program's user can open the file and hold the lock. Files that are removed while the
 * program runs, as by a program that cleans /tmp, can be made again. One thread. */

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

struct dlx_listen {
    /* Set by the caller before dlx__listen_start(): */
    const char *program;            /* borrowed, for errors: "dlpackd" */
    void (*tell)(const char *text); /* of files that were made or replaced; NULL: tells nothing */
    int backlog;
    mode_t mode;    /* of the socket file */
    bool has_group; /* `gid` is the group of that file, instead of the process's own */
    gid_t gid;
    bool takes_fds; /* connections may bring descriptors */

    char *path;
    char *folder;
    char *lock_path; /* NULL: another program made the socket */
    int fd;          /* -1: its file was removed, and could not be made again */
    int lock_fd;
    bool bound;       /* the socket file is ours */
    bool made_folder; /* the folder of the socket was made for it */
    dev_t dev;
    ino_t ino;
    uid_t folder_name_uid; /* of the folder, or of the symbolic link to it */
    uid_t folder_uid;
    mode_t folder_mode;
};

/* Without files, which dlx__listen_deinit() accepts. */
#define DLX_LISTEN_NONE(...)                                                                       \
    (struct dlx_listen)                                                                            \
    {                                                                                              \
        .fd = -1, .lock_fd = -1, __VA_ARGS__                                                       \
    }

/*
 * Makes the socket and listens; makes the folder of the path, too. Returns 0; DLX_E_IN_USE naming
 * the path and the pid of the program that has it, or a path that is no socket, which is left
 * alone; DLX_E_INVALID (the path is too long, or empty), DLX_E_ACCESS (also: the lock file is not
 * this user's alone), DLX_E_NO_MEMORY, DLX_E_SYSTEM. On failure the caller calls
 * dlx__listen_deinit().
 */
int dlx__listen_start(struct dlx_listen *place, const char *path);
/* Instead, for a socket that is there: names its files. Takes the path, which may be NULL (out of
 * memory). Returns 0, DLX_E_NO_MEMORY. */
int dlx__listen_name_files(struct dlx_listen *place, char *take_path);
/* Then, if this process bound the socket before it executed another program: takes the descriptor
 * of the lock file, which is still locked. Returns 0, DLX_E_NO_MEMORY, DLX_E_SYSTEM. */
int dlx__listen_take_lock(struct dlx_listen *place, int take_lock_fd);
/* Remembers whose the folder is, and who may reach into it, so that it can be made again. A folder
 * that is missing already is made again for this user alone. */
void dlx__listen_note_folder(struct dlx_listen *place);

/* Writes the id of this process into the lock file, which dlx__listen_start() did for the process
 * that called it. Returns 0, DLX_E_SYSTEM. */
int dlx__listen_sign(const struct dlx_listen *place);

/* Does anybody answer at the path? */
bool dlx__listen_is_served(const struct dlx_listen *place);
/* Does the path still lead to our socket file? Safe in a signal handler. */
bool dlx__listen_is_at_path(const struct dlx_listen *place);
/* Makes the lock file again if it was removed. Tries once. Returns true if it did. */
bool dlx__listen_restore_lock(struct dlx_listen *place);
/* Closes the socket, whose file was removed, and listens at its path again with a new one; makes
 * its folder again, too, if need be. Callers stop watching the socket first. Returns what
 * dlx__listen_start() returns; DLX_E_ACCESS also if the folder is another user's now. On failure
 * there is no socket, and a retry is possible. `ret_is_taken`: another program has the path now. */
int dlx__listen_restore(struct dlx_listen *place, bool *ret_is_taken);

/* Unlinks our files. Safe in a signal handler that ends the process. */
void dlx__listen_unlink(const struct dlx_listen *place);
/* Does so, closes the socket and frees the rest. */
void dlx__listen_deinit(struct dlx_listen *place);

#endif
