/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/config.h"
#include "common/error.h"
#include "common/memory.h"
#include "daemon/server/config_parts.h"
#include "daemon/server/memory_available.h"
#include "daemon/users/policy.h"
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <grp.h>
#include <ini.h>
#include <inttypes.h>
#include <libgen.h>
#include <pwd.h>
#include <search.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define RULE   "rule "
#define SOCKET "socket "
#define QUOTA  "quota "

/* ---- values -------------------------------------------------------------------------------- */

bool dlxd_config_parse_number(const char *text, unsigned long end, unsigned long *ret)
{
    char *rest;
    *ret = strtoul(text, &rest, 10);
    return *text >= '0' && *text <= '9' && !*rest && *ret < end;
}

/* A name takes precedence over a number, as in chown(1). */
int dlxd_config_parse_user(const char *text, uid_t *ret)
{
    const struct passwd *user = getpwnam(text);
    unsigned long uid = user ? user->pw_uid : 0;
    if (!user && !dlxd_config_parse_number(text, (uid_t)-1, &uid))
        return dlx__fail(DLX_E_INVALID, "there is no user '%.80s'", text);
    if (uid == DLXD_OVERFLOW_UID)
        return dlx__fail(DLX_E_INVALID,
                         "uid %lu stands for users without a number, and has no rights", uid);
    *ret = (uid_t)uid;
    return 0;
}

int dlxd_config_parse_group(const char *text, gid_t *ret)
{
    const struct group *group = getgrnam(text);
    unsigned long gid = group ? group->gr_gid : 0;
    if (!group && !dlxd_config_parse_number(text, (gid_t)-1, &gid))
        return dlx__fail(DLX_E_INVALID,
                         "there is no group '%.80s': make it with groupadd(8), or name "
                         "one that exists",
                         text);
    *ret = (gid_t)gid;
    return 0;
}

int dlxd_config_parse_count(const char *text, int32_t *ret)
{
    unsigned long n;
    if (!dlxd_config_parse_number(text, DLXD_FD_STORE_MAX + 1, &n))
        return dlx__fail(DLX_E_INVALID, "'%.80s' is not a number from 0 to %d", text,
                         DLXD_FD_STORE_MAX);
    *ret = (int32_t)n;
    return 0;
}

const struct dlx_memory *dlxd_config_parse_memory(const char *name)
{
    const struct dlx_memory *memory = dlx__memory_by_name(name);
    if (!memory)
        (void)dlx__fail(DLX_E_INVALID, "there is no memory of the kind '%.80s': memfd, posix",
                        name);
    return memory;
}

int dlxd_config_parse_path(const char *text, char **ret)
{
    if (text[0] != '/')
        return dlx__fail(DLX_E_INVALID, "socket '%.80s' is no path that begins with /", text);
    free(*ret);
    *ret = strdup(text);
    return *ret ? 0 : dlx__fail(DLX_E_NO_MEMORY, "out of memory for a path");
}

/* ---- files --------------------------------------------------------------------------------- */

/* What all files share. */
struct reading {
    struct dlxd_config *config;
    uint64_t n_bytes;
    size_t n_words;
    void *rules; /* of struct named, as tsearch(3) keeps them */
};

struct reader {
    struct reading *all;
    struct dlxd_config *config;
    const char *path;
    FILE *file;
    unsigned line;
    size_t first_rule; /* the first rule of this file */
    int code;          /* of the first error; the thread's message has the text */
};

static int fail_here(struct reader *reader, int code)
{
    reader->code = dlx__fail_prefix(code == DLX_E_NO_MEMORY ? code : DLX_E_INVALID, "%s:%u",
                                    reader->path, reader->line);
    return 0; /* failure, for the parser */
}

/* A rule by its name, which the rule owns. */
struct named {
    const char *name;
    size_t index;
};

static int compare_named(const void *a, const void *b)
{
    return strcmp(((const struct named *)a)->name, ((const struct named *)b)->name);
}

static struct dlxd_rule *add_rule(struct reader *reader, const char *name)
{
    struct dlxd_rules *rules = &reader->config->rules;
    struct dlxd_rule *rule = dlxd_rules_add(rules, name);
    struct named *named = rule ? malloc(sizeof *named) : NULL;
    if (rule && asprintf(&rule->place, "%s:%u", reader->path, reader->line) < 0)
        rule->place = NULL;
    if (named)
        *named = (struct named){.name = rule->name, .index = rules->n - 1};
    if (named && rule->place && tsearch(named, &reader->all->rules, compare_named))
        return rule;
    free(named);
    (void)dlx__fail(DLX_E_NO_MEMORY, "out of memory for rule \"%s\"", name);
    return NULL;
}

static struct dlxd_rule *find_rule(struct reader *reader, const char *name)
{
    struct dlxd_rules *rules = &reader->config->rules;
    const struct named wanted = {.name = name};
    struct named *const *found = tfind(&wanted, &reader->all->rules, compare_named);
    if (!found)
        return add_rule(reader, name);
    if ((*found)->index >= reader->first_rule)
        return &rules->items[(*found)->index];
    (void)dlx__fail(DLX_E_INVALID, "rule \"%s\" is at %s already", name,
                    rules->items[(*found)->index].place);
    return NULL;
}

static size_t n_words_of(const struct dlxd_rule *rule)
{
    return rule->n_uids + rule->n_gids + rule->n_sockets + rule->n_topics;
}

static int set_in_rule(struct reader *reader, const char *name, const char *key, const char *value)
{
    struct dlxd_rule *rule = find_rule(reader, name);
    if (!rule)
        return DLX_E_INVALID;
    size_t before = n_words_of(rule);
    int r = dlxd_config_set_in_rule(rule, key, value);
    reader->all->n_words += n_words_of(rule) - before;
    if (r == 0 && reader->all->n_words > DLXD_CONFIG_WORDS_MAX)
        r = dlx__fail(DLX_E_INVALID,
                      "rules name more than %u users, groups, sockets and topics: name groups or "
                      "patterns instead",
                      DLXD_CONFIG_WORDS_MAX);
    return r;
}

static int set_in_daemon(struct dlxd_config *config, const char *key, const char *value)
{
    if (strcmp(key, "fd-store") == 0)
        return dlxd_config_parse_count(value, &config->fd_store);
    if (strcmp(key, "memory") == 0) {
        config->memory = dlxd_config_parse_memory(value);
        return config->memory ? 0 : DLX_E_INVALID;
    }
    if (strcmp(key, "memory-limit") == 0) {
        uint64_t bytes = 0;
        int r = dlxd_config_parse_memory_limit(value, &bytes);
        if (r == 0)
            dlxd_config_limit_memory(config, bytes);
        return r;
    }
    if (strcmp(key, "socket") != 0)
        return dlx__fail(DLX_E_INVALID,
                         "[daemon] has no '%.80s': socket, memory, memory-limit, fd-store", key);
    return dlxd_config_parse_path(value, &config->socket);
}

/* Returns the non-empty text after the prefix; otherwise NULL. */
static const char *name_in(const char *section, const char *prefix)
{
    size_t size = strlen(prefix);
    return strncmp(section, prefix, size) == 0 && section[size] ? section + size : NULL;
}

/* For ini_parse_stream(), to which nonzero is success. */
static int on_value(void *data, const char *section, const char *key, const char *value)
{
    struct reader *reader = data;
    const char *name;
    int r;
    if (strcmp(section, "daemon") == 0)
        r = set_in_daemon(reader->config, key, value);
    else if ((name = name_in(section, RULE)))
        r = set_in_rule(reader, name, key, value);
    else if ((name = name_in(section, SOCKET)))
        r = dlxd_config_set_in_socket(reader->config, name, key, value);
    else if ((name = name_in(section, QUOTA)))
        r = dlxd_config_set_in_quota(reader->config, name, key, value);
    else
        r = dlx__fail(DLX_E_INVALID,
                      "'%.80s' is in [%.80s]: there are [daemon], [rule NAME], [socket NAME] and "
                      "[quota NAME]",
                      key, section);
    return r < 0 ? fail_here(reader, r) : 1;
}

/* The parser reports only keys, but a socket or a class of quotas may exist without any. */
static int on_section(struct reader *reader, const char *line)
{
    char section[INI_MAX_LINE], place[INI_MAX_LINE + 300];
    const char *end = strchr(line, ']'), *name;
    if (line[0] != '[' || !end)
        return 0; /* the parser reports the error */
    (void)snprintf(section, sizeof section, "%.*s", (int)(end - line - 1), line + 1);
    (void)snprintf(place, sizeof place, "%s:%u", reader->path, reader->line);
    int r = 0;
    if ((name = name_in(section, SOCKET)))
        r = dlxd_config_add_socket(reader->config, name, place);
    else if ((name = name_in(section, QUOTA)))
        r = dlxd_config_add_quota(reader->config, name, place);
    if (r == 0 &&
        DLX_MAX(reader->config->n_sockets, reader->config->quotas.n) > DLXD_CONFIG_PARTS_MAX)
        r = dlx__fail(DLX_E_INVALID, "more than %u sockets or classes of quotas",
                      DLXD_CONFIG_PARTS_MAX);
    return r;
}

/* For ini_parse_stream(): reads a line. */
static char *read_line(char *text, int size, void *data)
{
    struct reader *reader = data;
    if (reader->code < 0 || !fgets(text, size, reader->file))
        return NULL;
    reader->line++;
    reader->all->n_bytes += strlen(text);
    if (reader->all->n_bytes > DLXD_CONFIG_BYTES_MAX) {
        (void)dlx__fail(DLX_E_INVALID, "the configuration has more than %" PRIu64 " bytes",
                        DLXD_CONFIG_BYTES_MAX);
        (void)fail_here(reader, DLX_E_INVALID);
        return NULL;
    }
    if (!strchr(text, '\n') && !feof(reader->file)) {
        (void)dlx__fail(DLX_E_INVALID, "the line has more than %d bytes", size - 2);
        (void)fail_here(reader, DLX_E_INVALID);
        return NULL;
    }
    int r = on_section(reader, text);
    if (r < 0) {
        (void)fail_here(reader, r);
        return NULL;
    }
    return text;
}

/* A FIFO or a device could wait for ever, or never end. */
static int open_regular(const char *path, FILE **ret)
{
    struct stat st;
    dlx_cleanup(dlx__closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 || fstat(fd, &st) < 0)
        return dlx__fail_errno("%s", path);
    if (!S_ISREG(st.st_mode))
        return dlx__fail(DLX_E_INVALID, "%s is not a regular file", path);
    *ret = fdopen(fd, "r");
    if (!*ret)
        return dlx__fail_errno("%s", path);
    (void)dlx__steal_fd(&fd);
    return 0;
}

static int read_file(struct reading *all, const char *path)
{
    struct reader reader = {
        .all = all, .config = all->config, .path = path, .first_rule = all->config->rules.n};
    int r = open_regular(path, &reader.file);
    if (r < 0)
        return r;
    int bad_line = ini_parse_stream(read_line, &reader, on_value, &reader);
    int error = ferror(reader.file) ? errno : 0;
    (void)fclose(reader.file);
    errno = error;
    if (error)
        return dlx__fail_errno("%s cannot be read", path);
    if (reader.code < 0)
        return reader.code;
    if (bad_line != 0)
        return dlx__fail(DLX_E_INVALID,
                         "%s:%d: neither '[section]' nor 'key = value', nor a comment (#)", path,
                         bad_line);
    return 0;
}

/* A missing folder is no error; an unreadable one is. */
static int on_glob_error(const char *path, int error)
{
    (void)path;
    return error != ENOENT && error != ENOTDIR;
}

static int read_beside(struct reading *all, const char *path)
{
    dlx_cleanup(dlx__freep) char *copy = strdup(path);
    dlx_cleanup(dlx__freep) char *pattern = NULL;
    glob_t found;
    if (!copy || asprintf(&pattern, "%s/conf.d/*.conf", dirname(copy)) < 0)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for a path");
    int failed = glob(pattern, 0, on_glob_error, &found);
    if (failed == GLOB_NOMATCH)
        return 0;
    if (failed)
        return dlx__fail(DLX_E_SYSTEM, "%s cannot be read", pattern);
    int r = found.gl_pathc <= DLXD_CONFIG_FILES_MAX
                ? 0
                : dlx__fail(DLX_E_INVALID, "%s are %zu files (limit %u)", pattern, found.gl_pathc,
                            DLXD_CONFIG_FILES_MAX);
    for (size_t i = 0; i < found.gl_pathc && r == 0; i++)
        r = read_file(all, found.gl_pathv[i]);
    globfree(&found);
    return r;
}

/* ---- all of it ----------------------------------------------------------------------------- */

void dlxd_config_init(struct dlxd_config *config)
{
    uint64_t memory_bytes = dlxd_memory_available("");
    *config = (struct dlxd_config){
        .fd_store = -1, .memory_bytes = memory_bytes, .shared_bytes = memory_bytes};
}

int dlxd_config_read(struct dlxd_config *config, const char *path)
{
    struct reading all = {.config = config};
    dlxd_config_init(config);
    int r = read_file(&all, path);
    if (r == 0)
        r = read_beside(&all, path);
    tdestroy(all.rules, free);
    for (size_t i = 0; i < config->rules.n && r == 0; i++)
        r = dlxd_config_check_rule(config, &config->rules.items[i]);
    if (r == 0)
        r = dlxd_config_finish_quotas(config);
    if (r < 0)
        dlxd_config_deinit(config);
    return r;
}

void dlxd_config_deinit(struct dlxd_config *config)
{
    dlxd_rules_deinit(&config->rules);
    dlxd_quotas_deinit(&config->quotas);
    dlxd_config_deinit_sockets(config);
    free(config->socket);
    dlxd_config_init(config);
}
