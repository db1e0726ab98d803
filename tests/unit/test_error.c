/* SPDX-License-Identifier: Apache-2.0 */
/* Codes, their names and words, what errno becomes, and the thread's message. */
#include "tests/harness/run.h"
#include <dlx/dlx.h>

TEST(every_code_has_a_name_and_words_of_its_own)
{
    static const struct {
        int code;
        const char *name;
    } codes[] = {
#define CODE(name, number, text) {DLX_E_##name, #name},
        DLX_ERRORS(CODE)
#undef CODE
            {DLX_OK, "OK"}};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(codes); i++) {
        ck_assert_str_eq(dlx_error_name(codes[i].code), codes[i].name);
        ck_assert_str_ne(dlx_strerror(codes[i].code), "");
        ck_assert_str_ne(dlx_strerror(codes[i].code), dlx_strerror(-100000));
        for (size_t k = 0; k < i; k++) {
            ck_assert_int_ne(codes[i].code, codes[k].code);
            ck_assert_str_ne(dlx_strerror(codes[i].code), dlx_strerror(codes[k].code));
        }
    }
    ck_assert_str_eq(dlx_strerror(DLX_OK), "success");
    ck_assert_str_eq(dlx_error_name(1), "UNKNOWN");
    ck_assert_str_eq(dlx_strerror(1), "unknown error");
}

/* Of which process it is, also where another one reads it. */
TEST(too_many_open_files_are_said_with_whose_limit_it_is)
{
    char words[96];
    errno = EMFILE;
    ck_assert_int_eq(dlx__fail_errno("socket"), DLX_E_FD_LIMIT);
    (void)snprintf(words, sizeof words, ": %s may have ", program_invocation_short_name);
    ck_assert_ptr_nonnull(strstr(dlx__error_message(), words));
    ck_assert_ptr_nonnull(strstr(dlx__error_message(), "(raise it: ulimit -n, LimitNOFILE=)"));
    errno = ENFILE;
    ck_assert_int_eq(dlx__fail_errno("socket"), DLX_E_FD_LIMIT);
    ck_assert_ptr_null(strstr(dlx__error_message(), words));
}

TEST(errno_is_translated_once)
{
    static const struct {
        int err, code;
    } all[] = {{ENOMEM, DLX_E_NO_MEMORY},
               {ENOSPC, DLX_E_NO_MEMORY},
               {EMFILE, DLX_E_FD_LIMIT},
               {ENFILE, DLX_E_FD_LIMIT},
               {ETOOMANYREFS, DLX_E_FD_LIMIT},
               {EACCES, DLX_E_ACCESS},
               {EPERM, DLX_E_ACCESS},
               {EINTR, DLX_E_INTERRUPTED},
               {EPIPE, DLX_E_DISCONNECTED},
               {ECONNRESET, DLX_E_DISCONNECTED},
               {EINVAL, DLX_E_INVALID},
               {ENOSYS, DLX_E_KERNEL},
               {EOPNOTSUPP, DLX_E_KERNEL},
               {EIO, DLX_E_SYSTEM},
               {0, DLX_E_SYSTEM}};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(all); i++) {
        errno = all[i].err;
        ck_assert_int_eq(dlx__fail_errno("topic %s", "a"), all[i].code);
        ck_assert_ptr_nonnull(strstr(dlx__error_message(), "topic a: "));
        ck_assert_ptr_nonnull(strstr(dlx__error_message(), strerror(all[i].err)));
    }
}

/* A text that does not fit is cut at the end, never in the middle, and never overflows. */
TEST(long_messages_are_cut)
{
    char text[2 * DLX_ERROR_TEXT_SIZE];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    for (size_t n = DLX_ERROR_TEXT_SIZE - 8; n < DLX_ERROR_TEXT_SIZE + 2; n++) {
        (void)dlx__fail(DLX_E_LIMIT, "%.*s", (int)n, text);
        ck_assert_uint_eq(strlen(dlx__error_message()), DLX_MIN(n, DLX_ERROR_TEXT_SIZE - 1U));
        errno = EMFILE;
        ck_assert_int_eq(dlx__fail_errno("%.*s", (int)n, text), DLX_E_FD_LIMIT);
        ck_assert_uint_lt(strlen(dlx__error_message()), DLX_ERROR_TEXT_SIZE);
        ck_assert_int_eq(strncmp(dlx__error_message(), text, DLX_MIN(n, DLX_ERROR_TEXT_SIZE - 1U)),
                         0);
    }
    (void)dlx__fail(DLX_E_LIMIT, "%s", text);
    ck_assert_int_eq(dlx__fail_prefix(DLX_E_LIMIT, "topic %s", "a"), DLX_E_LIMIT);
    ck_assert_int_eq(strncmp(dlx__error_message(), "topic a: xxx", 12), 0);
    ck_assert_uint_eq(strlen(dlx__error_message()), DLX_ERROR_TEXT_SIZE - 1U);
    dlx__error_clear();
    ck_assert_str_eq(dlx__error_message(), "");
    (void)dlx__fail_prefix(DLX_E_LIMIT, "topic %s", "a"); /* no call said why */
    ck_assert_ptr_nonnull(strstr(dlx__error_message(), dlx_strerror(DLX_E_LIMIT)));
}

TEST(deadlines_are_far_off_but_not_past)
{
    const uint64_t second = 1000000000;
    uint64_t before = dlx__now_ns(), at = dlx__deadline((int64_t)second);
    ck_assert_uint_ge(at, before + second);
    ck_assert_uint_le(at, dlx__now_ns() + second);
    ck_assert_uint_eq(dlx__deadline(-1), UINT64_MAX);
    ck_assert_uint_eq(dlx__deadline(INT64_MIN), UINT64_MAX);
    ck_assert_uint_ge(dlx__deadline(INT64_MAX), (uint64_t)INT64_MAX);
    ck_assert_int_eq(dlx__deadline_ms(UINT64_MAX, 5), -1); /* poll() waits for ever */
    ck_assert_int_eq(dlx__deadline_ms(5, 5), 0);
    ck_assert_int_eq(dlx__deadline_ms(4, 5), 0);
    ck_assert_int_eq(dlx__deadline_ms(6, 5), 1); /* not too early */
    ck_assert_int_eq(dlx__deadline_ms(5 + second, 5), 1000);
    ck_assert_int_eq(dlx__deadline_ms(INT64_MAX, 5), 3600000); /* an int is enough for it */
}

int main(void)
{
    return dlx_test_run_case(tcase_create("error"));
}
