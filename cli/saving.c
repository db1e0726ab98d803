/* SPDX-License-Identifier: Apache-2.0 */

/* The common part of get and save: check the options, write, and say once what was left out. */

#include "cli/saving.h"
#include "cli/describe.h"
#include "cli/npz.h"
#include "cli/output.h"
#include "cli/save.h"
#include "cli/tensor.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void saving_check(struct saving *s, struct argp_state *state)
{
    if (strcmp(s->file, "-") == 0 && s->cli->json)
        argp_error(state, "--json and the file '-' exclude each other");
    if (strcmp(s->file, "-") == 0 && isatty(STDOUT_FILENO))
        argp_error(state, "the standard output is a terminal, and the data is binary: "
                          "write to a file or a pipe");
    if (!save_knows_suffix(s->file))
        argp_error(state,
                   "file name '%s': it must end in .npy" NPZ_COMMA " or .safetensors, or have no "
                   "suffix, which is .npy",
                   s->file);
    s->set = save_is_set(s->file);
    s->npz = save_is_npz(s->file);
    if ((s->set || s->npz) && s->tensor != SAVING_NO_TENSOR)
        argp_error(state, "--tensor is for .npy; .safetensors" NPZ_AND " files have all tensors");
    if (s->tensor == SAVING_NO_TENSOR)
        s->tensor = 0;
}

static void tell_once(struct saving *s, bool *told, const char *text)
{
    if (!*told)
        (void)cli_report(s->cli, s->topic, "%s", text);
    *told = true;
}

/* Says what the file cannot hold, the first time that it happens. */
static void tell_left_out(struct saving *s, const struct dlx_message *m,
                          const struct save_report *report)
{
    char text[512];
    uint32_t n = dlx_message_n_tensors(m);
    if (report->lost_meta_size > 0) {
        (void)snprintf(text, sizeof text, "%zu bytes of metadata are left out: %s",
                       report->lost_meta_size,
                       s->set   ? ".safetensors has room for a JSON object only"
                       : s->npz ? ".npz has no room for them, .safetensors has for a JSON object"
                                : ".npy has no room for them, .safetensors has for a JSON object");
        tell_once(s, &s->told_meta, text);
    }
    if (s->set)
        return;
    if (n > 1 && !s->npz) {
        (void)snprintf(text, sizeof text,
                       "message %" PRIu64
                       " has %u tensors: tensor %u is saved (--tensor), the others "
                       "are left out; .safetensors" NPZ_OR " has room for all",
                       dlx_message_seq(m), n, s->tensor);
        tell_once(s, &s->told_more, text);
    }
    if (!report->exact) {
        (void)snprintf(text, sizeof text,
                       ".npy cannot name %s: stored as '%s' with shape %.200s; `dlxctl pub --dtype "
                       "%s` takes single items back",
                       report->dtype, report->descr, report->shape, report->dtype);
        tell_once(s, &s->told_type, text);
    }
}

static int print_json(const struct saving *s, const struct dlx_message *m, const char *path,
                      const char *descr)
{
    json_t *json = output_json_put(describe_message(m, 0), "file", output_json_text(path));
    if (!s->set && !s->npz)
        json = output_json_put(json, "descr", json_string(descr));
    return cli_json(s->cli, json, false);
}

/* Bytes of the tensors that the file gets. */
static uint64_t written_size(const struct saving *s, const struct dlx_message *m)
{
    uint64_t sum = 0, n_items, size;
    for (uint32_t i = 0; i < dlx_message_n_tensors(m); i++)
        if ((s->set || s->npz || i == s->tensor) &&
            tensor_size(dlx_message_tensor_peek(m, i), &n_items, &size))
            sum += size;
    return sum;
}

int saving_write(struct saving *s, const struct dlx_message *m, const char *path,
                 uint64_t *ret_size)
{
    struct save_report report;
    struct cli_error e = {{0}};
    const DLTensor *t = dlx_message_tensor_peek(m, s->tensor);
    if (!s->set && !s->npz && !t)
        return cli_report(s->cli, s->topic,
                          "message %" PRIu64 " has %u tensors, there is no tensor %u",
                          dlx_message_seq(m), dlx_message_n_tensors(m), s->tensor);
    progress_transfer(s->progress, "writing", written_size(s, m));
    int code = s->set   ? save_set(m, path, &report, &e)
               : s->npz ? npz_save(m, path, &report, &e)
                        : save_tensor(t, path, &report, &e);
    progress_transfer(NULL, NULL, 0);
    if (code == DLX_E_INTERRUPTED)
        return cli_signal_status(false);
    if (code < 0)
        return cli_report(s->cli, s->topic, "%s", e.text);
    *ret_size = report.size;
    if (!s->set)
        (void)dlx_message_meta(m, &report.lost_meta_size);
    tell_left_out(s, m, &report);
    return s->cli->json ? print_json(s, m, path, report.descr) : CLI_OK;
}
