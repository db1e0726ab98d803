/* SPDX-License-Identifier: Apache-2.0 */

/* dlxctl save: a file for each message. saving.c and save.c write it. */

#include "cli/cli.h"
#include "cli/npz.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/save.h"
#include "cli/saving.h"
#include "cli/stream.h"
#include "cli/wait.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#ifdef DLX_NO_ZIP
#define NPZ_SETS  ""
#define NPZ_NAMES ""
#else
#define NPZ_SETS  ", or in .npz, whole sets with names"
#define NPZ_NAMES ", and arr_<its place> in a .npz file"
#endif

#define INTERVAL_NS INT64_C(250000000)

struct save {
    struct stream_args stream;
    struct saving to;
    uint64_t count; /* UINT64_MAX: until the stream ends */
    bool counted;
    uint64_t n, bytes;
    char first[SAVE_PATH_SIZE], last[SAVE_PATH_SIZE]; /* files, if there are several */
    struct progress progress;
};

static void save_check(void *into, struct argp_state *state)
{
    struct save *s = into;
    struct cli_error e = {{0}};
    stream_check(&s->stream, state);
    if (save_pattern_check(s->to.file, &e) < 0)
        argp_error(state, "%s", e.text);
    saving_check(&s->to, state);
    s->counted = s->count > 0;
    if (!s->counted)
        s->count = s->stream.until_gone ? UINT64_MAX : 1;
    if (s->count != 1 && cli_is_pattern(s->to.topic) && save_pattern_mixes_topics(s->to.file))
        argp_error(state,
                   "file name '%s': messages of several topics may have the same number, {topic} "
                   "or %%d is needed, too",
                   s->to.file);
}

static int save_one(struct save *s, const struct dlx_message *m)
{
    struct cli *cli = s->stream.cli;
    struct cli_error e = {{0}};
    char path[SAVE_PATH_SIZE];
    uint64_t size = 0;
    const struct save_name name = {.pattern = s->to.file,
                                   .number = s->n + 1,
                                   .seq = dlx_message_seq(m),
                                   .topic = dlx_message_topic(m),
                                   .several = s->count != 1};
    if (save_path(&name, path, sizeof path, &e) < 0)
        return cli_report(cli, s->to.topic, "%s", e.text);
    int status = saving_write(&s->to, m, path, &size);
    if (status != CLI_OK)
        return status;
    if (s->n++ == 0)
        memcpy(s->first, path, sizeof path);
    memcpy(s->last, path, sizeof path);
    s->bytes += size;
    if (s->count > 1 && progress_due(&s->progress, wait_now())) {
        char bytes[HUMAN_SIZE];
        human_bytes(s->bytes, bytes);
        progress_show(&s->progress, "%" PRIu64 " messages, %s, last %s", s->n, bytes, path);
    }
    return CLI_OK;
}

static bool is_endless(const struct save *s)
{
    return !s->counted && s->count != 1;
}

static int save_messages(struct save *s, struct stream *stream)
{
    int status = CLI_OK;
    while (status == CLI_OK && s->n < s->count) {
        struct dlx_message *m = NULL;
        int code = stream_next(stream, &m);
        if (code < 0)
            return CLI_FAILURE;
        if (code == 0 && wait_signal())
            return cli_signal_status(is_endless(s));
        if (code == 0) /* --until-gone */
            return !s->counted
                       ? CLI_OK
                       : cli_report(s->stream.cli, s->to.topic,
                                    "the publisher left after %" PRIu64 " of %" PRIu64 " messages",
                                    s->n, s->count);
        status = save_one(s, m);
        if (status == CLI_OK)
            stream_finish(stream, m);
        else
            dlx_message_unref(m);
        if (status > CLI_SIGNAL) /* as if the signal had come before this message */
            status = cli_signal_status(is_endless(s));
    }
    return status;
}

static void cmd_save_print_summary(const struct save *s, const struct stream *stream)
{
    struct dlx_subscription_stats stats = stream_stats(stream);
    char bytes[HUMAN_SIZE];
    progress_clear();
    if (!stream->subscription || s->stream.cli->json || !isatty(STDERR_FILENO))
        return;
    human_bytes(s->bytes, bytes);
    fprintf(stderr, "%s: %" PRIu64 " message%s saved, %s, %" PRIu64 " lost, %" PRIu64 " skipped\n",
            s->to.topic, s->n, s->n == 1 ? "" : "s", bytes, stats.lost, stats.skipped);
    if (s->n > 0 && s->count != 1 && strcmp(s->to.file, "-") != 0) /* names differ from FILE */
        fprintf(stderr, "%" PRIu64 " file%s: %s%s%s\n", s->n, s->n == 1 ? "" : "s", s->first,
                s->n == 1 ? "" : " ... ", s->n == 1 ? "" : s->last);
}

int cmd_save(struct cli *cli, int argc, char **argv)
{
    static const struct cli_option options[] = {
        {NULL, 0, "TOPIC|PATTERN", CLI_TO(struct save, to.topic), "a topic and a file are needed"},
        {NULL, 0, "FILE", CLI_TO(struct save, to.file), "a topic and a file are needed"},
        {"count", 'n', "N", CLI_IN(struct save, count, 1, UINT32_MAX),
         "Save N messages (default: 1; with --until-gone all that come)"},
        {"tensor", 'T', "I", CLI_IN(struct save, to.tensor, 0, UINT16_MAX),
         "Of messages with several tensors, save tensor I (default: 0)"},
        {0},
    };
    static const struct cli_line line = {
        .options = options,
        .more = stream_options,
        .check = save_check,
        .doc =
            "Write messages to .npy files, or, when FILE ends in .safetensors, whole sets with "
            "names and metadata" NPZ_SETS ".\v"
            "With more than one message FILE is a pattern: %06d (any width, or %d) is replaced by "
            "the number of the file, from 1, and {seq} by the number of the message; without "
            "either, \"-000001\" goes before the suffix. {topic} is the topic, with + for /. A "
            "file appears under its name only when it is complete and on the disk. '-' writes one "
            "array "
            "after the other to the standard output, which `dlxctl pub TOPIC -` reads.\n"
            "\n"
            "Types that .npy" NPZ_AND " cannot name (bfloat16, float8) are stored as unsigned "
            "integers of their size. A tensor without a name is called tensor_<its place in the "
            "message, from 0> in a .safetensors file" NPZ_NAMES ". "
            ".safetensors takes metadata that is a JSON object of strings, and is an error for a "
            "type that it does not know. A line tells what a file leaves out. " CLI_PATTERN_HELP,
    };
    struct save save = {.stream = {.cli = cli}, .to = {.cli = cli, .tensor = SAVING_NO_TENSOR}};
    struct stream stream = {0};
    int status = CLI_FAILURE;

    if (cli_parse(cli, &line, argc, argv, &save) != CLI_OK)
        return CLI_FAILURE;
    wait_catch_signals();
    progress_init(&save.progress, save.to.topic, stderr, !cli->json, INTERVAL_NS);
    save.to.progress = &save.progress;
    if (stream_open(&stream, &save.stream, save.to.topic) == 0)
        status = save_messages(&save, &stream);
    cmd_save_print_summary(&save, &stream);
    stream_close(&stream);
    return status;
}
