/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/config.h"
#include "common/error.h"
#include "common/topic.h"
#include "daemon/server/memory_available.h"
#include "daemon/users/policy.h"
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <ini.h>
#include <inttypes.h>
#include <libgen.h>
#include <search.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define RULE   "rule "
#define SOCKET "socket "
#define QUOTA  "quota "

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

/* ---- [daemon] -------------------------------------------------------------------------------- */

void dlxd_config_limit_memory(struct dlxd_config *config, uint64_t bytes)
{
    uint64_t defaults[DLXD_N_RESOURCES];
    config->shared_bytes = 2 * bytes;
    dlxd_quota_defaults(defaults, config->shared_bytes);
    dlxd_quotas_complete(&config->quotas, defaults);
}

static int set_in_daemon(struct dlxd_config *config, const char *key, const char *value)
{
    if (strcmp(key, "fd-store") == 0)
        return dlxd_config_parse_count(value, &config->fd_store);
    if (strcmp(key, "memory") == 0)
        return dlxd_config_parse_memory(value, &config->memory);
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

/* ---- [rule NAME] ----------------------------------------------------------------------------- */

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

static int rule_add_user(struct dlxd_rule *rule, const char *word)
{
    uid_t uid = 0;
    if (strcmp(word, "*") == 0) {
        rule->is_for_everybody = true;
        return 0;
    }
    int r = dlxd_config_parse_user(word, &uid);
    return r < 0 ? r : dlxd_rule_add_uid(rule, uid);
}

static int rule_add_group(struct dlxd_rule *rule, const char *word)
{
    gid_t gid = 0;
    int r = dlxd_config_parse_group(word, &gid);
    return r < 0 ? r : dlxd_rule_add_gid(rule, gid);
}

static int rule_add_topic(struct dlxd_rule *rule, const char *word)
{
    int r = dlx__pattern_check(word);
    return r < 0 ? r : dlxd_rule_add_topic(rule, word);
}

static int rule_add_socket(struct dlxd_rule *rule, const char *word)
{
    int r = strcmp(word, "*") == 0 ? 0 : dlxd_check_name("socket", word);
    return r < 0 ? r : dlxd_rule_add_socket(rule, word);
}

/* A user, and then the socket by which its processes connect. */
static int rule_add_workers(struct dlxd_rule *rule, const char *word)
{
    if (!rule->has_workers) {
        int r = dlxd_config_parse_user(word, &rule->workers);
        rule->has_workers = r == 0;
        return r;
    }
    if (*rule->workers_socket)
        return dlx__fail(DLX_E_INVALID,
                         "'%.80s' is one word too many: workers are one user, and one socket by "
                         "which it connects",
                         word);
    int r = dlxd_check_name("socket", word);
    if (r == 0)
        (void)snprintf(rule->workers_socket, sizeof rule->workers_socket, "%s", word);
    return r;
}

static int add_verb(uint32_t *verbs, uint32_t others, uint32_t all, const char *word)
{
    uint32_t found = strcmp(word, "all") == 0 ? all : 0;
    for (int verb = 0; verb < DLXD_N_VERBS; verb++)
        if (strcmp(word, dlxd_verb_name((enum dlxd_verb)verb)) == 0)
            found = DLXD_VERB(verb);
    if (found == 0)
        return dlx__fail(DLX_E_INVALID,
                         "'%.80s' is none of: publish, subscribe, observe, block, drop, gpu, all",
                         word);
    if (found & others)
        return dlx__fail(DLX_E_INVALID, "'%.80s' is both allowed and denied", word);
    *verbs |= found;
    return 0;
}

static int rule_allow(struct dlxd_rule *rule, const char *word)
{
    return add_verb(&rule->allow, rule->deny, DLXD_ALLOW_ALL, word);
}

static int rule_deny(struct dlxd_rule *rule, const char *word)
{
    return add_verb(&rule->deny, rule->allow, DLXD_DENY_ALL, word);
}

static const struct list {
    const char *key;
    int (*add)(struct dlxd_rule *rule, const char *word);
} lists[] = {
    {"users", rule_add_user},      {"groups", rule_add_group}, {"sockets", rule_add_socket},
    {"topics", rule_add_topic},    {"allow", rule_allow},      {"deny", rule_deny},
    {"workers", rule_add_workers},
};

static size_t n_words_of(const struct dlxd_rule *rule)
{
    return rule->n_uids + rule->n_gids + rule->n_sockets + rule->n_topics;
}

static int set_in_rule(struct reader *reader, const char *name, const char *key, const char *value)
{
    static const char separators[] = ", \t\n";
    const struct list *list = NULL;
    struct dlxd_rule *rule = find_rule(reader, name);
    if (!rule)
        return DLX_E_INVALID;
    for (size_t i = 0; i < DLX_ARRAY_SIZE(lists) && !list; i++)
        list = strcmp(key, lists[i].key) == 0 ? &lists[i] : NULL;
    if (!list)
        return dlx__fail(DLX_E_INVALID,
                         "a rule has no '%.80s': users, groups, sockets, topics, allow, deny, "
                         "workers",
                         key);
    dlx_cleanup(dlx__freep) char *words = strdup(value);
    if (!words)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory");
    size_t before = n_words_of(rule);
    int r = 0;
    char *rest = NULL;
    for (char *word = strtok_r(words, separators, &rest); word && r == 0;
         word = strtok_r(NULL, separators, &rest))
        r = list->add(rule, word);
    reader->all->n_words += n_words_of(rule) - before;
    if (r == 0 && reader->all->n_words > DLXD_CONFIG_WORDS_MAX)
        r = dlx__fail(DLX_E_INVALID,
                      "rules name more than %u users, groups, sockets and topics: name groups or "
                      "patterns instead",
                      DLXD_CONFIG_WORDS_MAX);
    return r;
}

static bool socket_is_there(const struct dlxd_config *config, const char *name)
{
    return dlxd_socket_is_main(name) || dlxd_config_find_socket(config, name);
}

static int fail_socket(const struct dlxd_rule *rule, const char *name)
{
    return dlx__fail(DLX_E_INVALID,
                     "%s: rule \"%s\" is about a socket '%s': there is no [socket %s]", rule->place,
                     rule->name, name, name);
}

static int check_sockets(const struct dlxd_config *config, const struct dlxd_rule *rule)
{
    for (size_t i = 0; i < rule->n_sockets; i++)
        if (strcmp(rule->sockets[i], "*") != 0 && !socket_is_there(config, rule->sockets[i]))
            return fail_socket(rule, rule->sockets[i]);
    if (*rule->workers_socket && !socket_is_there(config, rule->workers_socket))
        return fail_socket(rule, rule->workers_socket);
    return 0;
}

/* Only who may publish has groups. */
static int check_workers(const struct dlxd_rule *rule)
{
    if (!rule->has_workers || rule->allow & DLXD_VERB(DLXD_MAY_PUBLISH))
        return 0;
    return dlx__fail(DLX_E_INVALID,
                     "%s: rule \"%s\" says who the workers of publishers are, and lets nobody "
                     "publish: it needs allow = publish",
                     rule->place, rule->name);
}

static int check_rule(const struct dlxd_config *config, const struct dlxd_rule *rule)
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
    int r = check_workers(rule);
    return r < 0 ? r : check_sockets(config, rule);
}

/* ---- [socket NAME] --------------------------------------------------------------------------- */

struct dlxd_config_socket *dlxd_config_find_socket(const struct dlxd_config *config,
                                                   const char *name)
{
    for (size_t i = 0; i < config->n_sockets; i++)
        if (strcmp(config->sockets[i].name, name) == 0)
            return &config->sockets[i];
    return NULL;
}

static int add_socket(struct dlxd_config *config, const char *name, const char *place)
{
    int r = dlxd_check_name("socket", name);
    if (r < 0)
        return r;
    if (dlxd_config_find_socket(config, name))
        return 0; /* a later file adds to it */
    for (size_t i = 0; i < config->n_sockets; i++)
        if (dlxd_socket_number(config->sockets[i].name) == dlxd_socket_number(name))
            return dlx__fail(DLX_E_INVALID, "sockets %s and %s have the same number: rename one",
                             config->sockets[i].name, name);
    struct dlxd_config_socket *more =
        reallocarray(config->sockets, config->n_sockets + 1, sizeof *more);
    if (more)
        config->sockets = more;
    char *copy = more ? strdup(place) : NULL;
    if (!copy)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for socket %s", name);
    more[config->n_sockets] = (struct dlxd_config_socket){.place = copy};
    memcpy(more[config->n_sockets].name, name, strlen(name));
    config->n_sockets++;
    return 0;
}

static int set_in_socket(struct dlxd_config *config, const char *name, const char *key,
                         const char *value)
{
    struct dlxd_config_socket *socket = dlxd_config_find_socket(config, name);
    if (!socket)
        return dlx__fail(DLX_E_INVALID, "'[socket %.80s]' has to begin its line", name);
    if (strcmp(key, "path") == 0)
        return dlxd_config_parse_path(value,
                                      dlxd_socket_is_main(name) ? &config->socket : &socket->path);
    if (strcmp(key, "mode") == 0)
        return dlxd_config_parse_mode(value, &socket->mode);
    if (strcmp(key, "group") == 0) {
        int r = dlxd_config_parse_group(value, &socket->gid);
        socket->has_group = r == 0;
        return r;
    }
    if (strcmp(key, "quota") != 0)
        return dlx__fail(DLX_E_INVALID, "a socket has no '%.80s': path, mode, group, quota", key);
    free(socket->quota);
    socket->quota = strdup(value);
    return socket->quota ? 0 : dlx__fail(DLX_E_NO_MEMORY, "out of memory for a name");
}

static void deinit_sockets(struct dlxd_config *config)
{
    for (size_t i = 0; i < config->n_sockets; i++) {
        free(config->sockets[i].place);
        free(config->sockets[i].path);
        free(config->sockets[i].quota);
    }
    free(config->sockets);
    config->sockets = NULL;
    config->n_sockets = 0;
}

/* ---- [quota NAME] ---------------------------------------------------------------------------- */

static int add_quota(struct dlxd_config *config, const char *name, const char *place)
{
    int r = dlxd_check_name("quota", name);
    if (r < 0 || dlxd_quotas_find(&config->quotas, name)) /* a later file adds to it */
        return r;
    struct dlxd_quota *quota = dlxd_quotas_add(&config->quotas, name);
    if (quota)
        quota->place = strdup(place);
    return quota && quota->place ? 0
                                 : dlx__fail(DLX_E_NO_MEMORY, "out of memory for quota %s", name);
}

static int fail_quota_key(const char *key)
{
    char keys[256] = "";
    for (int i = 0; i < DLXD_N_RESOURCES; i++) {
        size_t n = strlen(keys);
        (void)snprintf(keys + n, sizeof keys - n, "%s%s", i > 0 ? ", " : "",
                       dlxd_quota_key((enum dlxd_resource)i));
    }
    return dlx__fail(DLX_E_INVALID, "a quota has no '%.80s': %s", key, keys);
}

static int set_in_quota(struct dlxd_config *config, const char *name, const char *key,
                        const char *value)
{
    struct dlxd_quota *quota = dlxd_quotas_find(&config->quotas, name);
    int resource = 0;
    if (!quota)
        return dlx__fail(DLX_E_INVALID, "'[quota %.80s]' has to begin its line", name);
    while (resource < DLXD_N_RESOURCES &&
           strcmp(key, dlxd_quota_key((enum dlxd_resource)resource)) != 0)
        resource++;
    if (resource == DLXD_N_RESOURCES)
        return fail_quota_key(key);
    bool is_memory = dlxd_quota_is_memory((enum dlxd_resource)resource);
    bool is_shared = is_memory && resource != DLXD_GPU_BYTES;
    int r = dlxd_config_parse_amount(value, is_memory, is_shared ? config->memory_bytes : 0,
                                     &quota->max[resource]);
    if (r == 0 && resource == DLXD_REQUESTS && quota->max[resource] == 0)
        r = dlx__fail(DLX_E_INVALID, "%s is 0, and a request would wait for ever: 1 is the least",
                      key);
    if (r == 0)
        quota->is_set |= UINT32_C(1) << resource;
    return r;
}

static int finish_quotas(struct dlxd_config *config)
{
    uint64_t defaults[DLXD_N_RESOURCES];
    dlxd_quota_defaults(defaults, config->shared_bytes);
    dlxd_quotas_complete(&config->quotas, defaults);
    for (size_t i = 0; i < config->n_sockets; i++) {
        const struct dlxd_config_socket *socket = &config->sockets[i];
        if (!socket->quota || strcmp(socket->quota, DLXD_QUOTA_DEFAULT) == 0)
            continue;
        struct dlxd_quota *quota = dlxd_quotas_find(&config->quotas, socket->quota);
        if (!quota)
            return dlx__fail(DLX_E_INVALID, "%s: socket %s has quota '%s': there is no [quota %s]",
                             socket->place, socket->name, socket->quota, socket->quota);
        int r = dlxd_quota_add_socket(quota, socket->name);
        if (r < 0)
            return r;
    }
    return 0;
}

/* ---- files ----------------------------------------------------------------------------------- */

static int fail_here(struct reader *reader, int code)
{
    reader->code = dlx__fail_prefix(code == DLX_E_NO_MEMORY ? code : DLX_E_INVALID, "%s:%u",
                                    reader->path, reader->line);
    return 0; /* failure, for the parser */
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
        r = set_in_socket(reader->config, name, key, value);
    else if ((name = name_in(section, QUOTA)))
        r = set_in_quota(reader->config, name, key, value);
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
        r = add_socket(reader->config, name, place);
    else if ((name = name_in(section, QUOTA)))
        r = add_quota(reader->config, name, place);
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
        r = check_rule(config, &config->rules.items[i]);
    if (r == 0)
        r = finish_quotas(config);
    if (r < 0)
        dlxd_config_deinit(config);
    return r;
}

void dlxd_config_deinit(struct dlxd_config *config)
{
    dlxd_rules_deinit(&config->rules);
    dlxd_quotas_deinit(&config->quotas);
    deinit_sockets(config);
    free(config->socket);
    dlxd_config_init(config);
}
