/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_SERVE_TOKEN_H
#define CLI_SERVE_TOKEN_H

/** The token that clients of `dlxctl serve` show. */

#include "cli/error.h"
#include <stdbool.h>

#define SERVE_TOKEN_SIZE 257

/** A new token. Returns 0 or DLX_E_SYSTEM. */
int serve_token_make(char ret[SERVE_TOKEN_SIZE], struct cli_error *e);

/** Reads the token in the file. If there is no such file, makes it, with a new token and mode 0600.
 *  Returns 0; DLX_E_ACCESS (other users may read the file, or it is another user's), DLX_E_INVALID
 *  (it has no token), DLX_E_SYSTEM. */
int serve_token_read(const char *path, char ret[SERVE_TOKEN_SIZE], struct cli_error *e);

/** Is this "Bearer TOKEN"? Takes as long for any that has the right size. */
bool serve_token_matches(const char *token, const char *authorization);

#endif
