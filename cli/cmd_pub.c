/* SPDX-License-Identifier: Apache-2.0 */

/* dlxctl pub: its options. source.c reads the files, pub.c publishes. */

#include "cli/args.h"
#include "cli/cli.h"
#include "cli/dtype.h"
#include "cli/npz.h"
#include "cli/pub.h"
#include "cli/source.h"
#include "cli/wait.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HISTORY_DEFAULT = 4, HISTORY_MAX = 1024 };

struct options {
    struct pub pub;
    struct source_args source;
    const char *dtype, *shape, *meta_text;
    char *meta; /* memory of pub.meta */
    bool latch;
};

static void parse_dtype(struct options *o, const char *arg, struct argp_state *state)
{
    if (dlx_dtype_parse(arg, &o->source.dtype) < 0)
        argp_error(state,
                   "--dtype: '%s' is not known; names are like uint8, float32, bfloat16, "
                   "float8_e4m3fn, complex64, float32x4, or code:bits:lanes",
                   arg);
}

static void parse_shape(struct options *o, const char *arg, struct argp_state *state)
{
    o->source.raw = args_parse_shape(arg, o->source.shape, &o->source.ndim);
    if (!o->source.raw)
        argp_error(state,
                   "--shape: '%s' is not a shape like 3,608,608 or 3x608x608 of at most %d sizes, "
                   "each up to 2^63 - 1",
                   arg, NPY_NDIM_MAX);
}

/* Metadata may be any bytes, but TEXT that begins as JSON does is meant as JSON. */
static void check_meta_text(const char *text, const struct argp_state *state)
{
    json_error_t error;
    if (*text != '{' && *text != '[')
        return;
    json_t *json = json_loads(text, JSON_ALLOW_NUL, &error);
    if (!json)
        argp_error(state, "--meta: no valid JSON at byte %d: %s (--meta @FILE takes any bytes)",
                   error.position, error.text);
    json_decref(json);
}

/* The metadata is TEXT, or the content of FILE in "@FILE". */
static void parse_meta(struct options *o, const char *arg, struct argp_state *state)
{
    size_t size = strlen(arg);
    if (*arg != '@') {
        check_meta_text(arg, state);
        o->meta = strdup(arg);
    } else {
        FILE *file = fopen(arg + 1, "re");
        o->meta = malloc(DLX_META_MAX + 1);
        if (!file)
            argp_error(state, "--meta: %s: %s", arg + 1, strerror(errno));
        size = o->meta ? fread(o->meta, 1, DLX_META_MAX + 1, file) : 0;
        if (ferror(file))
            argp_error(state, "--meta: %s: %s", arg + 1, strerror(errno));
        (void)fclose(file);
    }
    if (!o->meta)
        argp_failure(state, CLI_FAILURE, 0, "out of memory");
    if (size > DLX_META_MAX)
        argp_error(state, "--meta: more than the limit of %d bytes", DLX_META_MAX);
    o->pub.meta = (struct dlx_bytes){.data = o->meta, .size = size};
}

static void check_retain(struct options *o, struct argp_state *state)
{
    struct pub *p = &o->pub;
    if (o->latch && p->retain_for_ns)
        argp_error(state, "--latch and --retain-for exclude each other");
    if (p->retain == 0 && (o->latch || p->retain_for_ns))
        p->retain = 1;
    if (o->latch)
        p->retain_for_ns = DLX_RETAIN_LATCHED;
    if (p->history == 0 && p->retain > HISTORY_DEFAULT)
        p->history = p->retain;
    if (p->history > 0 && p->retain > p->history)
        argp_error(state, "--retain: %u messages cannot stay, --history keeps only %u", p->retain,
                   p->history);
}

static void check_files(const struct options *o, struct argp_state *state)
{
    const struct source_args *s = &o->source;
    struct cli_error e = {{0}};
    size_t n_standard = 0;
    for (size_t i = 0; i < s->n_files; i++) {
        char name[JOINED_NAME_SIZE];
        const char *file = s->files[i];
        if (s->joined && joined_split(s->files[i], name, &file, &e) < 0)
            argp_error(state, "--set: %s", e.text);
        n_standard += strcmp(file, "-") == 0;
    }
    if (n_standard > 1)
        argp_error(state, "the standard input ('-') can only be given once");
    if (n_standard > 0 && o->pub.n_loops != 1)
        argp_error(state, "--loop cannot read the standard input again; give a file");
}

static void pub_check(void *into, struct argp_state *state)
{
    static char standard_input[] = "-", *const only_standard_input[] = {standard_input, NULL};
    struct options *o = into;
    struct source_args *s = &o->source;
    if (o->dtype)
        parse_dtype(o, o->dtype, state);
    if (o->shape)
        parse_shape(o, o->shape, state);
    if (o->meta_text)
        parse_meta(o, o->meta_text, state);
    if (o->shape && !o->dtype)
        argp_error(state, "--shape needs --dtype");
    if (o->pub.hold && o->pub.linger_ns)
        argp_error(state, "--hold and --linger exclude each other");
    if (o->pub.drain && o->pub.groups.n == 0)
        argp_error(state, "--drain waits for groups, and needs --group");
    check_retain(o, state);
    if (!s->files) {
        if (s->joined)
            argp_error(state, "--set: a file is missing");
        if (isatty(STDIN_FILENO))
            argp_error(state, "a file is missing, and the standard input is a terminal");
        s->files = only_standard_input;
    }
    while (s->files[s->n_files])
        s->n_files++;
    check_files(o, state);
}

static const struct cli_option options[] = {
    {NULL, 0, "TOPIC", CLI_TO(struct options, pub.topic), "a topic is missing"},
    {NULL, 0, "[NAME=]FILE...|-", CLI_TO(struct options, source.files), NULL},
    {.type = CLI_HEADING, .help = "The content of the files:"},
    {"dtype", 'd', "TYPE", CLI_TO(struct options, dtype),
     "With --shape: raw bytes of this type. Alone: take the items of .npy files for this type of "
     "the same size (bfloat16, float8_e4m3fn)"},
    {"shape", 's', "N,N,...", CLI_TO(struct options, shape), "Shape of raw bytes, like 3,608,608"},
    {"set", 'e', NULL, CLI_TO(struct options, source.joined),
     "Publish the files together: each message is a set with a tensor of each. A file may be "
     "NAME=FILE; else its name is that of the file without folder and suffix"},
    {"meta", 'm', "TEXT", CLI_TO(struct options, meta_text),
     "Metadata of each message, such as '{\"frame\": 7}'; what begins with { or [ must be JSON. "
     "@FILE is what the file has, whatever that is"},
    {.type = CLI_HEADING, .help = "When:"},
    {"rate", 'r', "HZ", CLI_TO(struct options, pub.rate),
     "Messages a second (default: as fast as they are read)"},
    {"loop", 'l', "N", CLI_IN(struct options, pub.n_loops, 0, UINT64_MAX),
     "Publish the files N times, 0 for ever (default: once)"},
    {"wait", 'w', "N", CLI_IN(struct options, pub.n_wait, 1, UINT32_MAX),
     "Begin when N subscribers are attached"},
    {"linger", 0, "TIME", CLI_TO(struct options, pub.linger_ns), "Stay for this time afterwards"},
    {"hold", 'k', NULL, CLI_TO(struct options, pub.hold),
     "Stay until Ctrl-C, so that late subscribers get the history (after a restart of the daemon: "
     "with --latch)"},
    {.type = CLI_HEADING, .help = "How:"},
    {"history", 'H', "N", CLI_IN(struct options, pub.history, 1, HISTORY_MAX),
     "Keep the last N messages (1 to 1024, default: 1, or as many as --retain)"},
    {"retain", 'R', "N", CLI_IN(struct options, pub.retain, 1, HISTORY_MAX),
     "Retain the last N messages afterwards: the daemon keeps them for `dlxctl get` and for later "
     "subscribers"},
    {"retain-for", 0, "TIME", CLI_IN(struct options, pub.retain_for_ns, 1, 0),
     "Retain them for this time (default: until another one of the topic replaces them, or `dlxctl "
     "rm`)"},
    {"latch", 0, NULL, CLI_TO(struct options, latch),
     "Give them to late subscribers while pub runs, but do not retain them afterwards"},
    {"block", 'b', NULL, CLI_TO(struct options, pub.block),
     "Wait for reliable subscribers instead of dropping"},
    {"group", 'G', "NAME", CLI_TO(struct options, pub.groups),
     "Keep each message until a worker of this group has done it, also while there is no worker "
     "and "
     "when pub has ended (again for each group)"},
    {"drain", 0, NULL, CLI_TO(struct options, pub.drain),
     "Stay until all groups have done everything"},
    {"timeout", 't', "TIME", CLI_IN(struct options, pub.timeout_ns, 1, 0),
     "Fail after waiting for subscribers for this time (default: never)"},
    {.type = CLI_HEADING, .help = "General:"}, /* the options of all commands follow */
    {0},
};

int cmd_pub(struct cli *cli, int argc, char **argv)
{
    static const struct cli_line line = {
        .options = options,
        .check = pub_check,
        .doc =
            "Publish tensors from .npy files or raw bytes, and sets of tensors from "
            ".safetensors" NPZ_AND " files, read straight into shared memory.\v"
            "Examples:\n"
            "  dlxctl pub weights/w0 w0.npy --hold\n"
            "  dlxctl pub weights/policy model.safetensors --retain 1\n"
            "  dlxctl pub cam/front --set rgb=image.npy depth.npy --meta '{\"frame\": 7}'\n"
            "  dlxctl pub net/in --dtype float32 --shape 3,608,608 batch.bin\n"
            "  ffmpeg -i film.mp4 -f rawvideo -pix_fmt rgb24 -s 640x360 - |\n"
            "      dlxctl pub cam/front --dtype uint8 --shape 360,640,3 --rate 30\n"
            "\n"
            "'-' and no FILE are the standard input. A file may hold several arrays or tensors, "
            "one after the other. A .safetensors" NPZ_OR " file is one message, a set with "
            "names; __metadata__ of .safetensors is its metadata. Arrays in column-major order "
            "and of foreign byte order are brought into row-major native order.\n"
            "\n"
            "--retain-for and --latch without --retain are about one message. Retained "
            "messages stay charged to the user, and are replaced when another publisher of the "
            "topic has published as many messages as it retains itself.\n"
            "\n"
            "With --group, pub waits while workers are too far behind. `dlxctl queue` shows what "
            "they have yet to do.",
    };
    struct options o = {.pub = {.cli = cli, .n_loops = 1}};
    struct cli_error e = {{0}};
    int status = CLI_FAILURE;

    if (cli_parse(cli, &line, argc, argv, &o) != CLI_OK)
        return CLI_FAILURE;
    wait_catch_signals();
    if (source_new(&o.pub.source, &o.source, &e) < 0)
        (void)cli_report(cli, o.pub.topic, "%s", e.text);
    else
        status = pub_run(&o.pub);
    source_free(o.pub.source);
    free(o.meta);
    return status;
}
