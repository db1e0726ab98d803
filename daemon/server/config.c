/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/config.h"
#include "common/error.h"
#include "common/memory.h"
#include "common/topic.h"
#include "daemon/users/policy.h"
#include <errno.h>
#include <glob.h>
#include <grp.h>
#include <ini.h>
#include <libgen.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>

#define RULE       "rule "
#define SEPARATORS ", \t\n"

/* ---- values -------------------------------------------------------------------------------- */

static bool parse_number(const char *text, unsigned long end, unsigned long *ret)
{
    char *rest;
    *ret = strtoul(text, &rest, 10);
    return *text >= '0' && *text <= '9' && !*rest && *ret < end;
}

/* A name goes first, as in chown(1). */
int dlxd_config_parse_user(const char *text, uid_t *ret)
{
    const struct passwd *user = getpwnam(text);
    unsigned long uid = user ? user->pw_uid : 0;
    if (!user && !parse_number(text, (uid_t)-1, &uid))
        return dlx__fail(DLX_E_INVALID, "there is no user '%.80s'", text);
    if (uid == DLXD_OVERFLOW_UID)
        return dlx__fail(DLX_E_INVALID,
                         "uid %lu stands for users without a number, and has no rights", uid);
    *ret = (uid_t)uid;
    return 0;
}

static int parse_group(const char *text, gid_t *ret)
{
    const struct group *group = getgrnam(text);
    unsigned long gid = group ? group->gr_gid : 0;
    if (!group && !parse_number(text, (gid_t)-1, &gid))
        return dlx__fail(DLX_E_INVALID, "there is no group '%.80s'", text);
    *ret = (gid_t)gid;
    return 0;
}

int dlxd_config_parse_count(const char *text, int32_t *ret)
{
    unsigned long n;
    if (!parse_number(text, DLXD_FD_STORE_MAX + 1, &n))
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

/* ---- rules --------------------------------------------------------------------------------- */

static int add_user(struct dlxd_rule *rule, const char *word)
{
    uid_t uid = 0;
    if (strcmp(word, "*") == 0) {
        rule->is_for_everybody = true;
        return 0;
    }
    int r = dlxd_config_parse_user(word, &uid);
    return r < 0 ? r : dlxd_rule_add_uid(rule, uid);
}

static int add_group(struct dlxd_rule *rule, const char *word)
{
    gid_t gid = 0;
    int r = parse_group(word, &gid);
    return r < 0 ? r : dlxd_rule_add_gid(rule, gid);
}

static int add_topic(struct dlxd_rule *rule, const char *word)
{
    int r = dlx__pattern_check(word);
    return r < 0 ? r : dlxd_rule_add_topic(rule, word);
}

static int add_verb(uint32_t *verbs, uint32_t others, const char *word)
{
    uint32_t found = strcmp(word, "all") == 0 ? DLXD_ALL_VERBS : 0;
    for (int verb = 0; verb < DLXD_N_VERBS; verb++)
        if (strcmp(word, dlxd_verb_name((enum dlxd_verb)verb)) == 0)
            found = DLXD_VERB(verb);
    if (found == 0)
        return dlx__fail(DLX_E_INVALID,
                         "'%.80s' is none of: publish, subscribe, observe, block, drop, all", word);
    if (found & others)
        return dlx__fail(DLX_E_INVALID, "'%.80s' is both allowed and denied", word);
    *verbs |= found;
    return 0;
}

static int add_allowed(struct dlxd_rule *rule, const char *word)
{
    return add_verb(&rule->allow, rule->deny, word);
}

static int add_denied(struct dlxd_rule *rule, const char *word)
{
    return add_verb(&rule->deny, rule->allow, word);
}

static const struct list {
    const char *key;
    int (*add)(struct dlxd_rule *rule, const char *word);
} lists[] = {
    {"users", add_user},    {"groups", add_group}, {"topics", add_topic},
    {"allow", add_allowed}, {"deny", add_denied},
};

static int check_rule(const struct dlxd_rule *rule)
{
    if (!rule->is_for_everybody && rule->n_uids + rule->n_gids == 0)
        return dlx__fail(DLX_E_INVALID, "%s: rule \"%s\" is about nobody: it needs users or groups",
                         rule->place, rule->name);
    if ((rule->allow | rule->deny) == 0)
        return dlx__fail(DLX_E_INVALID, "%s: rule \"%s\" says nothing: it needs allow or deny",
                         rule->place, rule->name);
    if (rule->n_topics == 0)
        return dlx__fail(DLX_E_INVALID,
                         "%s: rule \"%s\" is about no topics: it needs topics, such as **",
                         rule->place, rule->name);
    return 0;
}

/* ---- files --------------------------------------------------------------------------------- */

struct reader {
    struct dlxd_config *config;
    const char *path;
    FILE *file;
    unsigned line;
    size_t first_rule; /* of this file */
    int code;          /* of the first thing that is wrong; the message says what */
};

static int fail_here(struct reader *reader, int code)
{
    reader->code = dlx__fail_prefix(code == DLX_E_NO_MEMORY ? code : DLX_E_INVALID, "%s:%u",
                                    reader->path, reader->line);
    return 0; /* the parser's word for failure */
}

static struct dlxd_rule *find_rule(struct reader *reader, const char *name)
{
    struct dlxd_rules *rules = &reader->config->rules;
    for (size_t i = 0; i < rules->n; i++) {
        if (strcmp(rules->items[i].name, name) != 0)
            continue;
        if (i >= reader->first_rule)
            return &rules->items[i];
        (void)dlx__fail(DLX_E_INVALID, "rule \"%s\" is at %s already", name, rules->items[i].place);
        return NULL;
    }
    struct dlxd_rule *rule = dlxd_rules_add(rules, name);
    if (rule && asprintf(&rule->place, "%s:%u", reader->path, reader->line) < 0)
        rule->place = NULL;
    if (!rule || !rule->place)
        (void)dlx__fail(DLX_E_NO_MEMORY, "out of memory for rule \"%s\"", name);
    return rule && rule->place ? rule : NULL;
}

static int set_in_rule(struct reader *reader, const char *name, const char *key, const char *value)
{
    const struct list *list = NULL;
    for (size_t i = 0; i < sizeof lists / sizeof lists[0] && !list; i++)
        list = strcmp(key, lists[i].key) == 0 ? &lists[i] : NULL;
    if (!list)
        return dlx__fail(DLX_E_INVALID, "a rule has no '%.80s': users, groups, topics, allow, deny",
                         key);
    struct dlxd_rule *rule = find_rule(reader, name);
    dlx_cleanup(dlx__freep) char *words = strdup(value);
    if (!rule)
        return DLX_E_INVALID;
    if (!words)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory");
    int r = 0;
    char *rest = NULL;
    for (char *word = strtok_r(words, SEPARATORS, &rest); word && r == 0;
         word = strtok_r(NULL, SEPARATORS, &rest))
        r = list->add(rule, word);
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
    if (strcmp(key, "socket") != 0)
        return dlx__fail(DLX_E_INVALID, "[daemon] has no '%.80s': socket, memory, fd-store", key);
    if (value[0] != '/')
        return dlx__fail(DLX_E_INVALID, "socket '%.80s' is no path that begins with /", value);
    free(config->socket);
    config->socket = strdup(value);
    return config->socket ? 0 : dlx__fail(DLX_E_NO_MEMORY, "out of memory for a path");
}

/* For ini_parse_stream(): not 0 is success. */
static int on_value(void *data, const char *section, const char *key, const char *value)
{
    struct reader *reader = data;
    int r;
    if (strcmp(section, "daemon") == 0)
        r = set_in_daemon(reader->config, key, value);
    else if (strncmp(section, RULE, strlen(RULE)) == 0 && section[strlen(RULE)])
        r = set_in_rule(reader, section + strlen(RULE), key, value);
    else
        r = dlx__fail(DLX_E_INVALID, "'%.80s' is in [%.80s]: there are [daemon] and [rule NAME]",
                      key, section);
    return r < 0 ? fail_here(reader, r) : 1;
}

/* Likewise: a line. */
static char *read_line(char *text, int size, void *data)
{
    struct reader *reader = data;
    if (reader->code < 0 || !fgets(text, size, reader->file))
        return NULL;
    reader->line++;
    if (!strchr(text, '\n') && !feof(reader->file)) {
        (void)dlx__fail(DLX_E_INVALID, "the line has more than %d bytes", size - 2);
        (void)fail_here(reader, DLX_E_INVALID);
        return NULL;
    }
    return text;
}

static int read_file(struct dlxd_config *config, const char *path)
{
    struct reader reader = {.config = config, .path = path, .first_rule = config->rules.n};
    reader.file = fopen(path, "re");
    if (!reader.file)
        return dlx__fail_errno("%s", path);
    int bad_line = ini_parse_stream(read_line, &reader, on_value, &reader);
    bool failed = ferror(reader.file) != 0;
    (void)fclose(reader.file);
    if (failed)
        return dlx__fail(DLX_E_SYSTEM, "%s cannot be read", path);
    if (reader.code < 0)
        return reader.code;
    if (bad_line != 0)
        return dlx__fail(DLX_E_INVALID,
                         "%s:%d: neither '[section]' nor 'key = value', nor a comment (#)", path,
                         bad_line);
    int r = 0;
    for (size_t i = reader.first_rule; i < config->rules.n && r == 0; i++)
        r = check_rule(&config->rules.items[i]);
    return r;
}

/* No folder is no error, and one that cannot be read is. */
static int on_glob_error(const char *path, int error)
{
    (void)path;
    return error != ENOENT && error != ENOTDIR;
}

static int read_beside(struct dlxd_config *config, const char *path)
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
    int r = 0;
    for (size_t i = 0; i < found.gl_pathc && r == 0; i++)
        r = read_file(config, found.gl_pathv[i]);
    globfree(&found);
    return r;
}

/* ---- all of it ----------------------------------------------------------------------------- */

void dlxd_config_init(struct dlxd_config *config)
{
    *config = (struct dlxd_config){.fd_store = -1};
}

int dlxd_config_read(struct dlxd_config *config, const char *path)
{
    dlxd_config_init(config);
    int r = read_file(config, path);
    if (r == 0)
        r = read_beside(config, path);
    if (r < 0)
        dlxd_config_deinit(config);
    return r;
}

void dlxd_config_deinit(struct dlxd_config *config)
{
    dlxd_rules_deinit(&config->rules);
    free(config->socket);
    dlxd_config_init(config);
}
