/* SPDX-License-Identifier: Apache-2.0 */

/* What keeps a publisher's messages from its subscribers: `dlxctl why` compares two looks. */

#include "cli/why.h"
#include "cli/describe.h"
#include "cli/output.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct why_finding *why_find(struct why *why, const char *kind)
{
    if (why->n_findings == WHY_FINDINGS_MAX) {
        why->n_left_out++;
        return NULL;
    }
    struct why_finding *finding = &why->findings[why->n_findings++];
    *finding = (struct why_finding){.kind = kind};
    return finding;
}

void why_say(struct why_finding *finding, const char *format, ...)
{
    va_list ap;
    if (!finding)
        return;
    size_t n = strlen(finding->text);
    va_start(ap, format);
    (void)vsnprintf(finding->text + n, sizeof finding->text - n, format, ap);
    va_end(ap);
}

void why_advise(struct why_finding *finding, const char *format, ...)
{
    va_list ap;
    if (!finding)
        return;
    va_start(ap, format);
    (void)vsnprintf(finding->remedy, sizeof finding->remedy, format, ap);
    va_end(ap);
}

const char *why_program(const char *name, uint32_t pid, uint32_t uid, char text[WHY_PROGRAM_SIZE])
{
    char shown[100], number[DESCRIBE_PID_SIZE];
    output_printable(name, shown, sizeof shown);
    (void)snprintf(text, WHY_PROGRAM_SIZE, "%s (pid %s, uid %u)", shown, describe_pid(pid, number),
                   uid);
    return text;
}

/* ---- the process ----------------------------------------------------------------------------- */

/* The state in /proc/PID/stat, which follows the name in brackets; 0: it cannot be read. */
static char read_state(uint32_t pid)
{
    char path[40], text[256] = "";
    (void)snprintf(path, sizeof path, "/proc/%u/stat", pid);
    FILE *file = fopen(path, "re");
    size_t n = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file)
        (void)fclose(file);
    text[n] = '\0';
    const char *end = strrchr(text, ')');
    return end && end[1] == ' ' ? end[2] : '\0';
}

const char *why_state(const struct why *why, uint32_t pid, char text[WHY_STATE_SIZE])
{
    static const struct {
        char state;
        const char *words;
    } states[] = {{'R', "runs"},
                  {'S', "sleeps"},
                  {'D', "waits for a disk or a device"},
                  {'T', "is stopped (SIGCONT lets it go on)"},
                  {'t', "is stopped by a debugger"},
                  {'Z', "has ended"},
                  {'X', "has ended"}};
    char state = why->daemon.pid_scope == DLX_PID_HERE && pid > 0 ? read_state(pid) : '\0';
    text[0] = '\0';
    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++)
        if (state != '\0' && states[i].state == state)
            (void)snprintf(text, WHY_STATE_SIZE, "; its process %s", states[i].words);
    return text;
}

/* ---- what both looks have ------------------------------------------------------------------- */

static const struct look_entry *entry_before(const struct why *why, uint64_t publisher)
{
    for (size_t i = 0; i < why->before.look.n_entries; i++)
        if (why->before.look.entries[i].info.publisher == publisher)
            return &why->before.look.entries[i];
    return NULL;
}

static const struct dlx_link_info *link_before(const struct look_entry *before, uint64_t link)
{
    for (size_t i = 0; before && i < before->n_links; i++)
        if (before->links[i].link == link)
            return &before->links[i];
    return NULL;
}

static const char *time_text(int64_t ns, char text[HUMAN_SIZE])
{
    human_ns(ns, text);
    return text;
}

/* ---- links ---------------------------------------------------------------------------------- */

/* ", which took nothing while dlxctl looked (1.00 s); its next message is 8.2 s old; it holds 16 of
 * 16; its process sleeps". */
static void say_link(const struct why *why, struct why_finding *finding,
                     const struct dlx_link_info *link, uint64_t n_taken)
{
    char time[HUMAN_SIZE], state[WHY_STATE_SIZE];
    if (n_taken == 0)
        why_say(finding, ", which took nothing while dlxctl looked (%s)",
                time_text(why->now.at_ns - why->before.at_ns, time));
    else
        why_say(finding, ", which took %" PRIu64 " message%s while dlxctl looked (%s)", n_taken,
                n_taken == 1 ? "" : "s", time_text(why->now.at_ns - why->before.at_ns, time));
    if (link->next_ns > 0)
        why_say(finding, "; its next message is %s old",
                time_text(output_age(why->now.at_ns, link->next_ns), time));
    why_say(finding, "; it holds %u of %u", link->n_held, link->max_held);
    if (link->held_ns > 0)
        why_say(finding, ", the oldest for %s",
                time_text(output_age(why->now.at_ns, link->held_ns), time));
    why_say(finding, "%s", why_state(why, link->pid, state));
}

static void advise_link(struct why_finding *finding, const struct dlx_link_info *link,
                        uint64_t n_taken)
{
    if (look_is_full(link))
        why_advise(finding,
                   "let it release messages, or raise its max_held; `dlxctl kick %u` cuts it off",
                   link->pid);
    else if (n_taken == 0)
        why_advise(finding, "see why it makes no take; `dlxctl kick %u` cuts it off", link->pid);
    else
        why_advise(finding, "make the subscriber faster, share the work among a group, let it "
                            "take only the newest (mode latest), or publish less often");
}

static void look_at_link(struct why *why, const struct look_entry *entry,
                         const struct dlx_link_info *link, const struct dlx_link_info *before)
{
    char publisher[WHY_PROGRAM_SIZE], subscriber[WHY_PROGRAM_SIZE];
    const struct dlx_publisher_info *p = &entry->info;
    uint64_t n_taken = link->taken - before->taken;
    struct why_finding *finding = NULL;
    (void)why_program(link->client_name, link->pid, link->uid, subscriber);
    (void)why_program(p->client_name, p->pid, p->uid, publisher);
    if (link->blocks && (before->blocks || n_taken == 0)) {
        finding = why_find(why, "blocked");
        why_say(finding, "publisher %s waits for subscriber %s", publisher, subscriber);
        say_link(why, finding, link, n_taken);
        advise_link(finding, link, n_taken);
    } else if (link->joining && before->joining) {
        finding = why_find(why, "joining");
        why_say(finding,
                "subscriber %s has yet to learn of publisher %s, or to prepare memory for it",
                subscriber, publisher);
        why_advise(finding, "it does so in its next call: see why it makes none");
    } else if (look_is_full(link) && n_taken == 0 && link->behind > 0) {
        finding = why_find(why, "stuck");
        why_say(finding, "subscriber %s is stuck", subscriber);
        say_link(why, finding, link, n_taken);
        advise_link(finding, link, n_taken);
    } else if (link->lost > before->lost) {
        finding = why_find(why, "losing");
        why_say(finding, "subscriber %s lost %" PRIu64 " messages", subscriber,
                link->lost - before->lost);
        say_link(why, finding, link, n_taken);
        advise_link(finding, link, n_taken);
    } else if (link->behind > 0 && n_taken == 0 && link->group == 0 && before->behind > 0) {
        finding = why_find(why, "stuck");
        why_say(finding, "subscriber %s has %" PRIu64 " messages to take", subscriber,
                link->behind);
        say_link(why, finding, link, n_taken);
        advise_link(finding, link, n_taken);
    }
}

/* ---- groups --------------------------------------------------------------------------------- */

static void look_at_group(struct why *why, const struct look_entry *entry,
                          const struct look_entry *before, const struct dlx_group_info *group)
{
    char time[HUMAN_SIZE];
    const struct dlx_group_info *was = NULL;
    for (size_t i = 0; before && i < before->n_groups; i++)
        if (before->groups[i].group == group->group)
            was = &before->groups[i];
    if (!was || group->waiting + group->in_flight == 0 || group->done > was->done)
        return;
    struct why_finding *finding = why_find(why, "queue");
    why_say(finding, "work queue %s of %s: %" PRIu64 " messages wait, %" PRIu64 " are in flight",
            group->name, entry->info.topic, group->waiting, group->in_flight);
    if (group->oldest_ns > 0)
        why_say(finding, ", the oldest is %s old",
                time_text(output_age(why->now.at_ns, group->oldest_ns), time));
    if (group->n_workers == 0) {
        why_say(finding, "; it has no worker");
        why_advise(finding, "start a worker (a subscription with group \"%s\")", group->name);
    } else {
        why_say(finding, "; its %u worker%s said done of none while dlxctl looked",
                group->n_workers, group->n_workers == 1 ? "" : "s");
        why_advise(finding,
                   "see with `dlxctl queue %s` who works on what; workers must say that a "
                   "message is done, and a lease lets others have what takes too long",
                   entry->info.topic);
    }
}

/* ---- publishers ----------------------------------------------------------------------------- */

static void say_idle(struct why *why, const struct look_entry *entry)
{
    char program[WHY_PROGRAM_SIZE], time[HUMAN_SIZE], state[WHY_STATE_SIZE];
    const struct dlx_publisher_info *p = &entry->info;
    struct why_finding *finding = why_find(why, "idle");
    (void)why_program(p->client_name, p->pid, p->uid, program);
    if (p->retained)
        why_say(finding, "publisher %s has ended, and only what it retained is there", program);
    else if (p->published == 0)
        why_say(finding, "publisher %s has published nothing%s", program,
                why_state(why, p->pid, state));
    else
        why_say(finding, "publisher %s published nothing while dlxctl looked (%s)%s", program,
                time_text(why->now.at_ns - why->before.at_ns, time), why_state(why, p->pid, state));
    if (p->retained)
        why_advise(finding, "start a publisher");
    else
        why_advise(finding, "see what the publisher waits for; one that publishes rarely needs a "
                            "longer look (--for)");
}

static bool is_blocked(const struct look_entry *entry)
{
    return look_count(entry, look_blocks) > 0;
}

/* The publisher waits, and no link is why: for subscribers, or for a group. */
static void say_waits(struct why *why, const struct look_entry *entry)
{
    char program[WHY_PROGRAM_SIZE], time[HUMAN_SIZE];
    const struct dlx_publisher_info *p = &entry->info;
    struct why_finding *finding = why_find(why, "waiting");
    why_say(finding, "publisher %s has waited for %s for subscribers or workers; it has %u",
            why_program(p->client_name, p->pid, p->uid, program),
            time_text(output_age(why->now.at_ns, p->blocked_at_ns), time), p->n_subscribers);
    why_advise(finding, "start the subscribers or workers that it waits for (min_subscribers, "
                        "groups)");
}

void why_look_at_publisher(struct why *why, const struct look_entry *entry)
{
    const struct look_entry *before = entry_before(why, entry->info.publisher);
    if (!before) /* it has just come */
        return;
    for (size_t i = 0; i < entry->n_links; i++) {
        const struct dlx_link_info *was = link_before(before, entry->links[i].link);
        if (was)
            look_at_link(why, entry, &entry->links[i], was);
    }
    size_t n = why->n_findings;
    for (size_t i = 0; i < entry->n_groups; i++)
        look_at_group(why, entry, before, &entry->groups[i]);
    if (is_blocked(entry) || why->n_findings > n)
        return;
    if (entry->info.blocked_at_ns > 0 && before->info.blocked_at_ns > 0)
        say_waits(why, entry);
    else if (entry->info.published == before->info.published)
        say_idle(why, entry);
}
