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

enum {
    OPTION_DTYPE = 'd',
    OPTION_SET = 'e', /* together */
    OPTION_META = 'm',
    OPTION_SHAPE = 's',
    OPTION_RATE = 'r',
    OPTION_LOOP = 'l',
    OPTION_HISTORY = 'H',
    OPTION_BLOCK = 'b',
    OPTION_RETAIN = 'R',
    OPTION_WAIT = 'w',
    OPTION_TIMEOUT = 't',
    OPTION_HOLD = 'k', /* keep */
    OPTION_RETAIN_FOR = 0x300,
    OPTION_LATCH,
    OPTION_LINGER,
};

struct options {
    struct pub pub;
    struct source_args source;
    char **files;
    char *meta; /* its memory */
    bool has_shape;
    bool latch;
};

static void cmd_pub_parse_dtype(struct options *o, const char *arg, struct argp_state *state)
{
    if (dlx_dtype_parse(arg, &o->source.dtype) < 0)
        argp_error(state,
                   "--dtype: '%s' is not known; names are like uint8, float32, bfloat16, "
                   "float8_e4m3fn, complex64, float32x4, or code:bits:lanes",
                   arg);
}

static void cmd_pub_parse_shape(struct options *o, const char *arg, struct argp_state *state)
{
    o->has_shape = args_parse_shape(arg, o->source.shape, &o->source.ndim);
    if (!o->has_shape)
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

/* TEXT, or @FILE, whose content it is. */
static void cmd_pub_parse_meta(struct options *o, const char *arg, struct argp_state *state)
{
    size_t size = strlen(arg);
    free(o->meta);
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

static void parse_rate(struct options *o, const char *arg, struct argp_state *state)
{
    if (!args_parse_rate(arg, &o->pub.rate))
        argp_error(state,
                   "--rate: '%s' is not a rate over 0 and up to 10^9 Hz, like 30, 29.97 or 2kHz",
                   arg);
}

static void add_file(struct options *o, char *arg, struct argp_state *state)
{
    char **files = reallocarray(o->files, o->source.n_files + 1, sizeof *files);
    if (!files)
        argp_failure(state, CLI_FAILURE, 0, "out of memory");
    o->files = files;
    files[o->source.n_files++] = arg;
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

static void pub_check(struct options *o, struct argp_state *state)
{
    static char standard_input[] = "-";
    struct source_args *s = &o->source;
    struct cli_error e = {{0}};
    if (!o->pub.topic)
        argp_error(state, "a topic is missing");
    if (o->has_shape && s->dtype.bits == 0)
        argp_error(state, "--shape needs --dtype");
    if (o->pub.hold && o->pub.linger_ns)
        argp_error(state, "--hold and --linger exclude each other");
    check_retain(o, state);
    s->raw = o->has_shape;
    if (s->n_files == 0) {
        if (s->joined)
            argp_error(state, "--set: a file is missing");
        if (isatty(STDIN_FILENO))
            argp_error(state, "a file is missing, and the standard input is a terminal");
        add_file(o, standard_input, state);
    }
    size_t n_standard = 0;
    for (size_t i = 0; i < s->n_files; i++) {
        char name[JOINED_NAME_SIZE];
        const char *file = o->files[i];
        if (s->joined && joined_split(o->files[i], name, &file, &e) < 0)
            argp_error(state, "--set: %s", e.text);
        n_standard += strcmp(file, "-") == 0;
    }
    if (n_standard > 1)
        argp_error(state, "the standard input ('-') can only be given once");
    if (n_standard > 0 && o->pub.n_loops != 1)
        argp_error(state, "--loop cannot read the standard input again; give a file");
    s->files = o->files;
}

static error_t pub_parse(int key, char *arg, struct argp_state *state)
{
    struct options *o = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = o->pub.cli;
        return 0;
    case OPTION_DTYPE:
        cmd_pub_parse_dtype(o, arg, state);
        return 0;
    case OPTION_SHAPE:
        cmd_pub_parse_shape(o, arg, state);
        return 0;
    case OPTION_SET:
        o->source.joined = true;
        return 0;
    case OPTION_META:
        cmd_pub_parse_meta(o, arg, state);
        return 0;
    case OPTION_RATE:
        parse_rate(o, arg, state);
        return 0;
    case OPTION_LOOP:
        o->pub.n_loops = args_number(state, "--loop", arg, 0, UINT64_MAX);
        return 0;
    case OPTION_HISTORY:
        o->pub.history = (uint32_t)args_number(state, "--history", arg, 1, HISTORY_MAX);
        return 0;
    case OPTION_BLOCK:
        o->pub.block = true;
        return 0;
    case OPTION_RETAIN:
        o->pub.retain = (uint32_t)args_number(state, "--retain", arg, 1, HISTORY_MAX);
        return 0;
    case OPTION_RETAIN_FOR:
        o->pub.retain_for_ns = args_time(state, "--retain-for", arg);
        if (o->pub.retain_for_ns == 0)
            argp_error(state, "--retain-for: must be more than 0");
        return 0;
    case OPTION_LATCH:
        o->latch = true;
        return 0;
    case OPTION_WAIT:
        o->pub.n_wait = (uint32_t)args_number(state, "--wait", arg, 1, UINT32_MAX);
        return 0;
    case OPTION_TIMEOUT:
        o->pub.timeout_ns = args_time(state, "--timeout", arg);
        if (o->pub.timeout_ns == 0)
            argp_error(state, "--timeout: must be more than 0");
        return 0;
    case OPTION_LINGER:
        o->pub.linger_ns = args_time(state, "--linger", arg);
        return 0;
    case OPTION_HOLD:
        o->pub.hold = true;
        return 0;
    case ARGP_KEY_ARG:
        if (!o->pub.topic)
            o->pub.topic = arg;
        else
            add_file(o, arg, state);
        return 0;
    case ARGP_KEY_END:
        pub_check(o, state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option options[] = {
    {NULL, 0, NULL, 0, "What the files are:", 1},
    {"dtype", OPTION_DTYPE, "TYPE", 0,
     "With --shape: raw bytes of this type. Alone: take the items of .npy files for this type of "
     "the "
     "same size (bfloat16, float8_e4m3fn)",
     1},
    {"shape", OPTION_SHAPE, "N,N,...", 0, "Shape of raw bytes, like 3,608,608", 1},
    {"set", OPTION_SET, NULL, 0,
     "Publish the files together: each message is a set with a tensor of each. A file may be "
     "NAME=FILE; else its name is that of the file without folder and suffix",
     1},
    {"meta", OPTION_META, "TEXT", 0,
     "Metadata of each message, such as '{\"frame\": 7}'; what begins with { or [ must be JSON. "
     "@FILE is what the file has, whatever that is",
     1},
    {NULL, 0, NULL, 0, "When:", 2},
    {"rate", OPTION_RATE, "HZ", 0, "Messages a second (default: as fast as they are read)", 2},
    {"loop", OPTION_LOOP, "N", 0, "Publish the files N times, 0 for ever (default: once)", 2},
    {"wait", OPTION_WAIT, "N", 0, "Begin when N subscribers are attached", 2},
    {"linger", OPTION_LINGER, "TIME", 0, "Stay for this time afterwards", 2},
    {"hold", OPTION_HOLD, NULL, 0, "Stay until Ctrl-C, so that late subscribers get the history",
     2},
    {NULL, 0, NULL, 0, "How:", 3},
    {"history", OPTION_HISTORY, "N", 0,
     "Keep the last N messages (1 to 1024, default: 1, or as many as --retain)", 3},
    {"retain", OPTION_RETAIN, "N", 0,
     "Retain the last N messages afterwards: the daemon keeps them for `dlxctl get` and "
     "for later subscribers",
     3},
    {"retain-for", OPTION_RETAIN_FOR, "TIME", 0,
     "Retain them for this time (default: until another one of the topic replaces them, or `dlxctl "
     "rm`)",
     3},
    {"latch", OPTION_LATCH, NULL, 0,
     "Give them to late subscribers while pub runs, but do not retain them afterwards", 3},
    {"block", OPTION_BLOCK, NULL, 0, "Wait for reliable subscribers instead of dropping", 3},
    {"timeout", OPTION_TIMEOUT, "TIME", 0,
     "Fail after waiting for subscribers for this time (default: never)", 3},
    {0},
};

int cmd_pub(struct cli *cli, int argc, char **argv)
{
    static const struct argp_child children[] = {{&cli_argp_common, 0, "General:", 4}, {0}};
    static const struct argp argp = {
        .options = options,
        .parser = pub_parse,
        .args_doc = "TOPIC [[NAME=]FILE...|-]",
        .doc = "Publish tensors from .npy files or raw bytes, and sets of tensors from "
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
               "and of "
               "foreign byte order are "
               "brought into row-major native order.\n"
               "\n"
               "--retain-for and --latch without --retain are about one message. What is retained "
               "stays charged to the user; it is replaced when another publisher of the topic has "
               "published as many messages as it retains itself.",
        .children = children,
    };
    struct options o = {.pub = {.cli = cli, .n_loops = 1}};
    struct cli_error e = {{0}};
    int status = CLI_FAILURE;

    if (cli_parse(cli, &argp, argc, argv, &o) != CLI_OK)
        return CLI_FAILURE;
    wait_catch_signals();
    if (source_new(&o.pub.source, &o.source, &e) < 0)
        (void)cli_report(cli, o.pub.topic, "%s", e.text);
    else
        status = pub_run(&o.pub);
    source_free(o.pub.source);
    free(o.files);
    free(o.meta);
    return status;
}
