/* SPDX-License-Identifier: Apache-2.0 */

/* dlxctl view: the newest tensor of a topic, drawn on the terminal again and again, or once. */

#include "cli/cli.h"
#include "cli/output.h"
#include "cli/stream.h"
#include "cli/terminal.h"
#include "cli/view.h"
#include "cli/wait.h"
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define RATE_DEFAULT 10.0
#define SECOND_NS    INT64_C(1000000000)
/* How long a terminal may take to answer. */
#define ANSWER_NS SECOND_NS
/* A smaller terminal shows that it is too small. */
#define COLUMNS_MIN 20U
#define LINES_MIN   5U

/* Where in a sequence of a key, or in a late answer of the terminal, the input is. */
enum input {
    INPUT_PLAIN,
    INPUT_ESCAPE,  /* after ESC */
    INPUT_CONTROL, /* after ESC [, until a letter */
    INPUT_STRING,  /* after ESC _ and its like, until ESC and a backslash */
    INPUT_LAST,    /* one more character belongs to it */
};

struct session {
    struct stream_args stream;
    const char *topic, *graphics_name;
    double rate; /* 0: not given */
    bool once;
    uint32_t tensor;
    enum graphics graphics;
    struct graphics_answers answers;
    struct graphics_place screen; /* all of the terminal */
    struct view view;
    enum input input;
    bool must_clear; /* what is on the screen may be larger than what comes */
};

static void view_check(void *into, struct argp_state *state)
{
    struct session *s = into;
    if (s->stream.cli->json)
        argp_error(state, "a picture is no JSON: dlxctl get --json shows values");
    if (s->once && s->rate > 0)
        argp_error(state, "--once and --rate exclude each other");
    if (s->graphics_name && !graphics_parse(s->graphics_name, &s->graphics))
        argp_error(state, "--graphics: '%s' is none of auto, kitty, sixel, blocks and characters",
                   s->graphics_name);
    if (s->rate == 0)
        s->rate = RATE_DEFAULT;
    s->stream.latest = true;
    s->stream.subscribe.history = 1;
    stream_check(&s->stream, state);
}

/* ---- the terminal ---------------------------------------------------------------------------- */

/* Returns whether the size has changed. */
static bool measure_screen(struct session *s)
{
    struct winsize size = {0};
    struct graphics_place place = {80, 24, s->answers.cell_width, s->answers.cell_height};
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0) {
        place.columns = size.ws_col;
        place.lines = size.ws_row;
        if (size.ws_xpixel >= size.ws_col && size.ws_ypixel >= size.ws_row) {
            place.cell_width = size.ws_xpixel / size.ws_col;
            place.cell_height = size.ws_ypixel / size.ws_row;
        }
    }
    if (place.cell_width == 0 || place.cell_height == 0) {
        place.cell_width = 10;
        place.cell_height = 20;
    }
    bool changed = memcmp(&place, &s->screen, sizeof place) != 0;
    s->screen = place;
    return changed;
}

/* The title is above the picture, and the legend below. */
static struct graphics_place place_of_picture(const struct session *s)
{
    struct graphics_place place = s->screen;
    place.lines = place.lines > 3 ? place.lines - 3 : 1;
    return place;
}

/* Asks which graphics the terminal has; gives up after a time, or for a signal. */
static void ask_terminal(struct session *s)
{
    char bytes[512];
    size_t n = 0;
    int64_t deadline = wait_deadline(ANSWER_NS);
    terminal_take(GRAPHICS_QUESTIONS, "");
    while (n < sizeof bytes && !graphics_read_answers(bytes, n, &s->answers) &&
           wait_until(STDIN_FILENO, deadline) == 0) {
        ssize_t got = read(STDIN_FILENO, bytes + n, sizeof bytes - n);
        if (got <= 0)
            break;
        n += (size_t)got;
    }
    terminal_restore();
}

static int choose_graphics(struct session *s)
{
    bool asks = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    enum graphics plain = graphics_without_asking();
    if (!graphics_is_built(s->graphics))
        return cli_report(s->stream.cli, NULL,
                          "this dlxctl was built without chafa, so it draws by characters alone: "
                          "build it where libchafa-dev is installed");
    if (asks && plain != GRAPHICS_CHARACTERS && s->graphics != GRAPHICS_BLOCKS &&
        s->graphics != GRAPHICS_CHARACTERS)
        ask_terminal(s);
    if (s->graphics != GRAPHICS_AUTO)
        return CLI_OK;
    s->graphics = !isatty(STDOUT_FILENO) ? GRAPHICS_CHARACTERS
                  : s->answers.kitty     ? GRAPHICS_KITTY
                  : s->answers.sixel     ? GRAPHICS_SIXEL
                                         : plain;
    return CLI_OK;
}

/* ---- drawing --------------------------------------------------------------------------------- */

/* At most so many columns of a text, by the terminal's width. */
static void put_line(FILE *file, const char *text, unsigned columns)
{
    (void)fwrite(text, 1, output_bytes_of(text, columns), file);
}

/* "TOPIC  #7  uint8 (480, 640, 3)  900 KiB  12 ms old". */
static void put_title(FILE *file, const struct session *s)
{
    char title[sizeof s->view.title + HUMAN_SIZE + 8], age[HUMAN_SIZE], topic[256];
    output_printable(s->topic, topic, sizeof topic);
    human_ns(output_age(wait_now(), (uint64_t)s->view.published_ns), age);
    if (s->view.kind == VIEW_NOTHING)
        (void)snprintf(title, sizeof title, "%s", topic);
    else
        (void)snprintf(title, sizeof title, "%s  %s old", s->view.title, age);
    put_line(file, title, s->screen.columns - 1);
}

static void put_legend(FILE *file, const struct session *s, const struct stream *stream)
{
    char legend[VIEW_LEGEND_SIZE], words[sizeof stream->words.text], text[VIEW_LEGEND_SIZE + 700];
    char publishers[STREAM_PUBLISHERS_SIZE];
    view_legend(&s->view, legend);
    output_printable(stream->words.text, words, sizeof words);
    if (!*words && stream_stats(stream).n_publishers == 0)
        (void)snprintf(words, sizeof words, "no publisher%s, waiting for one",
                       s->view.kind == VIEW_NOTHING ? " yet" : "");
    else if (!*words && s->view.kind == VIEW_NOTHING)
        (void)snprintf(words, sizeof words, "no message yet: %s",
                       stream_publishers(stream, publishers));
    (void)snprintf(text, sizeof text, "%s%s%s", words, *words && *legend ? "  " : "", legend);
    put_line(file, text, s->screen.columns - 1);
}

/* The picture on a screen. Each line is cleared first: at the end of a full one, a terminal would
 * clear its last column. */
static int put_picture(FILE *file, const struct session *s)
{
    struct graphics_place place = place_of_picture(s);
    char *text = NULL;
    size_t size = 0;
    FILE *picture = open_memstream(&text, &size);
    int code = picture ? view_draw(picture, &s->view, s->graphics, &place) : DLX_E_NO_MEMORY;
    if (picture && fclose(picture) != 0)
        code = DLX_E_NO_MEMORY;
    for (size_t i = 0; code == 0 && i < size; i++) {
        if (i > 0 && text[i - 1] == '\n')
            (void)fputs("\033[K", file);
        (void)fputc(text[i], file);
    }
    free(text);
    return code;
}

static int put_frame(FILE *file, struct session *s, const struct stream *stream, bool all)
{
    int code = 0;
    char small[80];
    if (s->screen.columns < COLUMNS_MIN || s->screen.lines < LINES_MIN) {
        (void)snprintf(small, sizeof small, "%ux%u is too small: %ux%u", s->screen.columns,
                       s->screen.lines, COLUMNS_MIN, LINES_MIN);
        (void)fprintf(file, "%s\033[2J\033[H", graphics_clear(s->graphics));
        put_line(file, small, s->screen.columns - 1);
        return 0;
    }
    /* a terminal that knows it shows all of the frame at once */
    (void)fputs("\033[?2026h", file);
    if (all)
        (void)fputs(graphics_clear(s->graphics), file);
    if (all && s->must_clear)
        (void)fputs("\033[2J", file);
    (void)fputs("\033[H\033[K\033[1m", file);
    put_title(file, s);
    (void)fputs("\033[m\n\033[K", file);
    if (all && s->view.kind != VIEW_NOTHING)
        code = put_picture(file, s);
    (void)fprintf(file, "\033[%u;1H\033[K\033[2m", s->screen.lines);
    put_legend(file, s, stream);
    (void)fputs("\033[m\033[?2026l", file);
    return code;
}

static int show(struct session *s, const struct stream *stream, bool all)
{
    int code = put_frame(stdout, s, stream, all);
    if (code < 0)
        return cli_report(s->stream.cli, NULL, "out of memory");
    s->must_clear = s->must_clear && !all;
    return cli_finish(s->stream.cli, CLI_OK);
}

/* ---- live ------------------------------------------------------------------------------------ */

static void take(struct session *s, struct dlx_message *m)
{
    enum view_kind kind = s->view.kind;
    uint32_t width = s->view.picture.width, height = s->view.picture.height;
    struct graphics_place place = place_of_picture(s);
    (void)view_set(&s->view, m, s->tensor, s->graphics, &place);
    dlx_message_unref(m);
    s->must_clear = s->must_clear || kind != s->view.kind || kind != VIEW_PICTURE ||
                    width != s->view.picture.width || height != s->view.picture.height;
}

static enum input input_next(enum input at, unsigned char c)
{
    if (c == '\033')
        return at == INPUT_STRING ? INPUT_LAST : INPUT_ESCAPE;
    switch (at) {
    case INPUT_ESCAPE:
        return c == '['                          ? INPUT_CONTROL
               : c == 'O'                        ? INPUT_LAST
               : c && strchr("_P]^X", c) != NULL ? INPUT_STRING
                                                 : INPUT_PLAIN;
    case INPUT_CONTROL:
        return c >= 0x40 && c < 0x7f ? INPUT_PLAIN : INPUT_CONTROL;
    case INPUT_STRING:
        return c == '\a' ? INPUT_PLAIN : INPUT_STRING;
    default:
        return INPUT_PLAIN;
    }
}

/* Whether the key q, or the end of the input, ends the command. */
static bool key_ends(struct session *s)
{
    unsigned char keys[64];
    while (wait_until(STDIN_FILENO, 0) == 0) {
        ssize_t n = read(STDIN_FILENO, keys, sizeof keys);
        if (n <= 0)
            return true;
        for (ssize_t i = 0; i < n; i++) {
            if (s->input == INPUT_PLAIN && (keys[i] == 'q' || keys[i] == 'Q'))
                return true;
            s->input = input_next(s->input, keys[i]);
        }
    }
    return false;
}

static int show_stream(struct session *s, struct stream *stream)
{
    int64_t interval = (int64_t)((double)SECOND_NS / s->rate), next_picture = 0, next_title = 0;
    int status = CLI_OK;
    s->must_clear = true;
    stream->is_silent = true;
    while (status == CLI_OK && !wait_signal() && !key_ends(s)) {
        struct dlx_message *m = NULL;
        int code = STREAM_WAKE;
        int64_t now = wait_now(), tick = now + WAIT_SLICE_NS;
        stream->wake = tick;
        if (now < next_picture)
            (void)wait_until(STDIN_FILENO, next_picture < tick ? next_picture : tick);
        else
            code = stream_next(stream, &m);
        if (code <= 0)
            return code < 0 ? CLI_FAILURE : CLI_OK;
        if (code == 1) {
            next_picture = wait_deadline(interval);
            take(s, m);
        }
        bool changed = measure_screen(s);
        changed = terminal_has_resumed() || changed;
        s->must_clear = s->must_clear || changed;
        if (code == 1 || s->must_clear || wait_now() >= next_title) {
            status = show(s, stream, code == 1 || s->must_clear);
            next_title = wait_deadline(SECOND_NS);
        }
    }
    return status;
}

static int view_live(struct session *s, struct stream *stream)
{
    const char *term = getenv("TERM");
    if (!isatty(STDIN_FILENO))
        return cli_report(s->stream.cli, NULL, "the standard input is no terminal: use --once");
    if (!term || !*term || strcmp(term, "dumb") == 0)
        return cli_report(s->stream.cli, NULL,
                          "a terminal of the type %s ($TERM) has no screen: use --once",
                          term && *term ? term : "\"\"");
    char leave[64];
    (void)snprintf(leave, sizeof leave, "%s\033[m\033[?2026l\033[?25h\033[?1049l",
                   graphics_clear(s->graphics));
    terminal_take("\033[?1049h\033[?25l", leave);
    int status = show_stream(s, stream);
    terminal_restore();
    /* the screen with the last words is gone */
    if (status == CLI_FAILURE && *stream->words.text)
        (void)cli_report(s->stream.cli, s->topic, "%s", stream->words.text);
    return status;
}

/* ---- once ------------------------------------------------------------------------------------ */

static int view_once(struct session *s, struct stream *stream)
{
    struct dlx_message *m = NULL;
    struct graphics_place place = place_of_picture(s);
    char legend[VIEW_LEGEND_SIZE];
    stream_report_retained(stream);
    int code = stream_next(stream, &m);
    if (code < 0)
        return CLI_FAILURE;
    if (code == 0)
        return wait_signal() ? cli_signal_status(false)
                             : cli_report(s->stream.cli, s->topic, "the publisher has left");
    code = view_set(&s->view, m, s->tensor, s->graphics, &place);
    dlx_message_unref(m);
    if (code < 0)
        return cli_report(s->stream.cli, s->topic, "no picture: %s", s->view.words.text);
    printf("%s\n", s->view.title);
    if (view_draw(stdout, &s->view, s->graphics, &place) < 0)
        return cli_report(s->stream.cli, NULL, "out of memory");
    view_legend(&s->view, legend);
    printf("%s\n", legend);
    return cli_finish(s->stream.cli, CLI_OK);
}

int cmd_view(struct cli *cli, int argc, char **argv)
{
    static const struct cli_option options[] = {
        {NULL, 0, "TOPIC|PATTERN", CLI_TO(struct session, topic), "a topic is missing"},
        {"once", 'o', NULL, CLI_TO(struct session, once),
         "Draw one picture and end; so does output that is no terminal"},
        {"rate", 'R', "RATE", CLI_TO(struct session, rate),
         "Draw at most so many pictures a second (default: 10)"},
        {"tensor", 'T', "I", CLI_IN(struct session, tensor, 0, UINT16_MAX),
         "Of a message with several tensors, draw tensor I (default: 0)"},
        {"graphics", 0, "HOW", CLI_TO(struct session, graphics_name),
         "auto, kitty, sixel, blocks or characters (default: auto, the first one that the "
         "terminal has)"},
        {"timeout", 't', "TIME", CLI_IN(struct session, stream.timeout_ns, 1, 0),
         "Fail when no message comes for this time"},
        {"until-gone", 'g', NULL, CLI_TO(struct session, stream.until_gone),
         "End when the last publisher has left"},
        {0},
    };
    static const struct cli_line line = {
        .options = options,
        .check = view_check,
        .doc =
            "Draw the newest tensor of a topic in the terminal: image-shaped ones as images, other "
            "ones of two dimensions as heat maps, the rest as histograms.\vq ends it. Messages "
            "that come between two pictures are skipped, and none is held while a picture is "
            "drawn, so that a stream is not slowed down. A tensor on a GPU is copied to the host. "
            "NO_COLOR draws by characters. " CLI_PATTERN_HELP,
    };
    struct session s = {.stream = {.cli = cli}, .graphics = GRAPHICS_AUTO};
    struct stream stream = {0};
    int status = CLI_FAILURE;

    if (cli_parse(cli, &line, argc, argv, &s) != CLI_OK)
        return CLI_FAILURE;
    wait_catch_signals();
    if (stream_open(&stream, &s.stream, s.topic) == 0 && choose_graphics(&s) == CLI_OK) {
        (void)measure_screen(&s);
        s.once = s.once || !isatty(STDOUT_FILENO);
        status = s.once ? view_once(&s, &stream) : view_live(&s, &stream);
    }
    stream_close(&stream);
    view_deinit(&s.view);
    return status;
}
