/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_USER_H
#define CLI_USER_H

#include <stdint.h>

/** The name of a user, safe for a terminal; the number of a user without one. The names of the last
 *  users are kept. Returns `text`. */
#define USER_NAME_SIZE 33
const char *user_name(uint32_t uid, char text[USER_NAME_SIZE]);

#endif
