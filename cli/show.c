/* SPDX-License-Identifier: Apache-2.0 */

/* A message in words, as echo and get print it. */

#include "cli/show.h"
#include "cli/describe.h"
#include "cli/output.h"
#include "cli/tensor.h"
#include "cli/value.h"
#include <inttypes.h>
#include <stdio.h>

static void print_values(const DLTensor *t, uint64_t n_values)
{
    char text[VALUE_TEXT_SIZE];
    uint64_t n_items = 0, size = 0;
    if (n_values == 0 || !tensor_size(t, &n_items, &size))
        return;
    if (!tensor_is_readable(t)) {
        fputs("  (not readable here)", stdout);
        return;
    }
    uint64_t lanes = t->dtype.lanes, all = n_items * lanes; /* fits: bytes do */
    uint64_t n = n_values < all ? n_values : all;
    bool compact = tensor_is_compact(t);
    fputs("  [", stdout);
    for (uint64_t i = 0; i < n; i++) {
        if (compact)
            value_text(t->dtype, tensor_data(t), i, text);
        else
            value_text(t->dtype, tensor_item(t, i / lanes), i % lanes, text);
        printf("%s%s", i ? " " : "", text);
    }
    fputs(n < all ? " ...]" : "]", stdout);
}

void show_message(const struct dlx_message *m, const char *from, uint64_t n_values, bool with_gap)
{
    char age[HUMAN_SIZE], tensor[DESCRIBE_ITEM_SIZE], meta[DESCRIBE_META_SIZE];
    uint32_t n = dlx_message_n_tensors(m);
    human_ns(describe_age(m), age);
    printf("%s%s#%" PRIu64 "  %s", from ? from : "", from ? "  " : "", dlx_message_seq(m), age);
    if (with_gap && dlx_message_gap(m) > 0)
        printf("  (gap %" PRIu64 ")", dlx_message_gap(m));
    if (!describe_is_set(m)) {
        describe_tensor_text(dlx_message_tensor_peek(m, 0), tensor);
        printf("  %s", tensor);
        print_values(dlx_message_tensor_peek(m, 0), n_values);
        putchar('\n');
        return;
    }
    describe_set_text(m, tensor);
    printf("  %s\n", tensor);
    for (uint32_t i = 0; i < n && i < DESCRIBE_TENSORS; i++) {
        describe_item_text(m, i, tensor);
        printf("    %s", tensor);
        print_values(dlx_message_tensor_peek(m, i), n_values);
        putchar('\n');
    }
    if (n > DESCRIBE_TENSORS)
        printf("    ... and %u more\n", n - DESCRIBE_TENSORS);
    if (describe_meta_text(m, meta))
        printf("    metadata  %s\n", meta);
}
