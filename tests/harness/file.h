/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_FILE_H
#define DLX_TESTS_HARNESS_FILE_H

/* Make a file with this text, or replace what is in it. */
void dlx_test_write_file(const char *path, const char *text);

#endif
