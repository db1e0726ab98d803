/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/file.h"
#include <check.h>
#include <stdio.h>

void dlx_test_write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "we");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_ge(fputs(text, f), 0);
    ck_assert_int_eq(fclose(f), 0);
}
