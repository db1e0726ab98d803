/* SPDX-License-Identifier: Apache-2.0 */

/* The words of a bell are understood however they are cut into pieces. */

#include "common/bell.h"
#include "tests/harness/run.h"

static const uint64_t ends[] = {1, 2, 127, 128, 0x4081020408, INT64_MAX - 1, INT64_MAX};

LOOP_TEST(a_packed_number_is_heard_among_rings, 0, (int)DLX_ARRAY_SIZE(ends))
{
    for (size_t cut = 0; cut <= DLX_BELL_END_SIZE + 4; cut++) {
        uint8_t bytes[2 + DLX_BELL_END_SIZE + 2] = {0}; /* rung before, and after */
        dlx__bell_pack(ends[_i], bytes + 2);
        uint64_t end = dlx__bell_hear(0, bytes, cut);
        end = dlx__bell_hear(end, bytes + cut, sizeof bytes - cut);
        ck_assert_uint_eq(end, ends[_i]);
        ck_assert_uint_eq(dlx__bell_hear(end, bytes, sizeof bytes),
                          end); /* the last 9 digits count */
    }
}

TEST(rings_say_nothing_and_noise_says_some_number)
{
    uint8_t bytes[256];
    memset(bytes, 0, sizeof bytes);
    ck_assert_uint_eq(dlx__bell_hear(0, bytes, sizeof bytes), 0);
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)~i;
    ck_assert_uint_le(dlx__bell_hear(0, bytes, sizeof bytes), INT64_MAX);
    memset(bytes, UINT8_MAX, sizeof bytes);
    ck_assert_uint_eq(dlx__bell_hear(0, bytes, sizeof bytes), INT64_MAX);
}

TEST(a_publisher_says_that_it_cuts_a_link)
{
    static const uint8_t rung[] = {0, 0, DLX_BELL_CUT};
    ck_assert_int_eq(dlx__bell_holder(DLX_BELL_UNHEARD, rung, 2), DLX_BELL_PUBLISHER);
    ck_assert_int_eq(dlx__bell_holder(DLX_BELL_UNHEARD, rung, 3), DLX_BELL_CUT_BY_PUBLISHER);
    ck_assert_int_eq(dlx__bell_holder(DLX_BELL_PUBLISHER, &rung[2], 1), DLX_BELL_CUT_BY_PUBLISHER);
}

/* Of the daemon, which speaks first. Later the publisher may say what it likes. */
TEST(the_daemon_says_whose_bell_it_is)
{
    static const uint8_t waits[] = {DLX_BELL_WAITS, 0, 0, DLX_BELL_TOLD, DLX_BELL_WAITS};
    static const uint8_t late[] = {0, DLX_BELL_WAITS};
    enum dlx_bell_holder holder = DLX_BELL_UNHEARD;
    for (size_t i = 0; i < sizeof waits; i++) {
        holder = dlx__bell_holder(holder, &waits[i], 1);
        ck_assert_int_eq(holder, i < 3 ? DLX_BELL_DAEMON : DLX_BELL_PUBLISHER);
    }
    ck_assert_int_eq(dlx__bell_holder(DLX_BELL_UNHEARD, waits, 3), DLX_BELL_DAEMON);
    ck_assert_int_eq(dlx__bell_holder(DLX_BELL_UNHEARD, waits, sizeof waits), DLX_BELL_PUBLISHER);
    ck_assert_int_eq(dlx__bell_holder(DLX_BELL_UNHEARD, late, sizeof late), DLX_BELL_PUBLISHER);
}

int main(void)
{
    return dlx_test_run_case(tcase_create("bell"));
}
