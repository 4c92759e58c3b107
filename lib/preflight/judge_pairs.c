/* judge_pairs.c - faults of pairs, and the task to which they belong. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "preflight/judge_priv.h"

/* ---- what can be wrong with a direction ---- */

static bool control_fails(const struct preflight_table *t, uint32_t a, uint32_t b)
{
    return judge_entry(t, a, b)->control != PREFLIGHT_REACHED;
}

static bool is_unmeasured(const struct preflight_table *t, uint32_t a, uint32_t b)
{
    return !control_fails(t, a, b) && judge_entry(t, a, b)->rtt_us == 0;
}

static bool data_fails(const struct preflight_table *t, uint32_t a, uint32_t b)
{
    uint8_t state = judge_entry(t, a, b)->data;

    return state != PREFLIGHT_REACHED && state != PREFLIGHT_UNTESTED;
}

static bool large_fails(const struct preflight_table *t, uint32_t a, uint32_t b)
{
    return judge_entry(t, a, b)->large == PREFLIGHT_BAD;
}

static bool storage_fails(const struct preflight_table *t, uint32_t a, uint32_t b)
{
    return judge_entry(t, a, b)->storage == PREFLIGHT_BAD;
}

static bool lock_fails(const struct preflight_table *t, uint32_t a, uint32_t b)
{
    return judge_entry(t, a, b)->lock == PREFLIGHT_BAD;
}

static bool mtu_differs(const struct preflight_table *t, uint32_t a, uint32_t b)
{
    const struct preflight_entry *there = judge_entry(t, a, b), *back = judge_entry(t, b, a);

    return back != NULL && there->mtu > 0 && back->mtu > 0 && there->mtu != back->mtu;
}

static bool reverse_fails(const struct preflight_table *t, uint32_t a, uint32_t b)
{
    return judge_entry(t, a, b)->reverse == PREFLIGHT_BAD;
}

/* Refused, although the preflight of the task runs, so that its ports are open: a firewall answers. */
enum { REJECTED = PREFLIGHT_REACHES, REACH_TEXTS };

static const char *const reach_text[REACH_TEXTS] = {
    [PREFLIGHT_UNTESTED] = "were not tested",
    [PREFLIGHT_REACHED] = "succeed",
    [PREFLIGHT_REFUSED] = "are refused: no preflight listens there",
    [PREFLIGHT_SILENT] = "get no answer",
    [PREFLIGHT_UNRESOLVED] = "fail: the host name has no address",
    [PREFLIGHT_FOREIGN] = "reach another program, or a task that already trains",
    [PREFLIGHT_DENIED] = "fail: the token or the certificate is not accepted",
    [PREFLIGHT_MISTAKEN] = "reach another task or another cluster text",
    [PREFLIGHT_LOST] = "broke during the measurement",
    [REJECTED] = "are rejected, although the preflight runs there",
};
static const char *const reach_remedy[REACH_TEXTS] = {
    [PREFLIGHT_UNTESTED] = "repeat the preflight with a larger --seconds",
    [PREFLIGHT_REACHED] = "",
    [PREFLIGHT_REFUSED] = "start the preflight on that host too, and compare the port with the cluster text",
    [PREFLIGHT_SILENT] = "look for a firewall that drops the port (iptables -L -n -v, security group), a wrong address or "
                         "route, or a host that is down",
    [PREFLIGHT_UNRESOLVED] = "add the name to DNS or to /etc/hosts of the host that cannot resolve it",
    [PREFLIGHT_FOREIGN] = "`ss -ltnp` on that host shows the process; end it, or change the port in the cluster text",
    [PREFLIGHT_DENIED] = "give every task the same TRAINERD_TOKEN, or certificates of the same authority that name "
                         "their hosts",
    [PREFLIGHT_MISTAKEN] = "compare `getent hosts NAME` on every host, and the cluster text and the task index of every "
                           "task",
    [PREFLIGHT_LOST] = "read the output of the preflight on that host, and test its network interface for errors (ip -s link)",
    [REJECTED] = "look on both hosts, and between them, for a firewall that rejects the port (iptables -L -n -v shows "
                 "REJECT; nft list ruleset, security group)",
};

static const struct topic {
    const char *what;
    enum preflight_severity severity;
    bool (*fails)(const struct preflight_table *t, uint32_t from, uint32_t to);
    bool has_reach;             /* text and remedy depend on the state of the port */
    const char *text, *remedy;  /* without has_reach */
} topics[] = {
    { "control port", PREFLIGHT_FAULT, control_fails, true, "connections", NULL },
    { "data port", PREFLIGHT_FAULT, data_fails, true, "connections", NULL },
    { "time", PREFLIGHT_FAULT, is_unmeasured, false, "not measured before the deadline",
      "repeat the preflight with a larger --seconds (preflight_seconds of the job)" },
    { "large packets", PREFLIGHT_FAULT, large_fails, false, "packets of full size are lost, small ones arrive",
      "set the same MTU on every interface and switch of the path (ip link set DEV mtu N), or permit ICMP \"fragmentation "
      "needed\"" },
    { "storage", PREFLIGHT_FAULT, storage_fails, false, "files in checkpoint.directory are not seen",
      "mount the same file system at checkpoint.directory on that host (findmnt -T DIR)" },
    { "lock", PREFLIGHT_FAULT, lock_fails, false, "link() in checkpoint.directory does not exclude another task",
      "use a file system with atomic link(), such as NFS 4, and mount it without local locks (nolock, local_lock)" },
    { "MTU", PREFLIGHT_NOTE, mtu_differs, false, "the two ends of the path have different MTUs",
      "set the same MTU on every host (ip link set DEV mtu N)" },
    { "reverse name", PREFLIGHT_NOTE, reverse_fails, false, "the address does not resolve to the name in the cluster text",
      "add a PTR record, or the name to /etc/hosts; training needs the name to address direction only" },
};

/* ---- attribution ---- */

struct faults {
    struct judged *j;
    const struct topic *topic;
    uint8_t *bad;      /* [world * world]: direction from -> to fails */
    uint32_t *partner; /* [world] number of other tasks with which a task has a failing pair */
};

static bool is_bad(const struct faults *f, uint32_t a, uint32_t b)
{
    return f->bad[(size_t)a * f->j->t->world + b] != 0;
}

static bool is_bad_pair(const struct faults *f, uint32_t a, uint32_t b)
{
    return is_bad(f, a, b) || is_bad(f, b, a);
}

static void clear(struct faults *f, uint32_t a, uint32_t b)
{
    uint32_t n = f->j->t->world;

    if (!is_bad_pair(f, a, b))
        return;
    f->bad[(size_t)a * n + b] = f->bad[(size_t)b * n + a] = 0;
    f->partner[a]--;
    f->partner[b]--;
}

/* Returns the state of the port in a failing direction. */
static uint8_t state_of(const struct faults *f, uint32_t from, uint32_t to)
{
    const struct preflight_entry *e = judge_entry(f->j->t, from, to);
    uint8_t state = strcmp(f->topic->what, "data port") == 0 ? e->data : e->control;

    return state == PREFLIGHT_REFUSED && f->j->t->rows[to].present ? REJECTED : state;
}

static void report(struct faults *f, uint32_t task, uint32_t other, uint32_t n_to, uint32_t n_from,
                   uint8_t state)
{
    const struct preflight_table *t = f->j->t;
    const struct topic *topic = f->topic;
    const char *name = t->tasks[task].name, *address = t->tasks[task].address;
    const char *direction = n_to > 0 && n_from > 0 ? "to and from" : n_to > 0 ? "to" : "from";
    const char *how = topic->has_reach ? reach_text[state] : "";
    char who[512];

    if (other == PREFLIGHT_NO_TASK)
        snprintf(who, sizeof(who), "%s %s (%s)", direction, name, address);
    else if (n_to > 0 && n_from > 0)
        snprintf(who, sizeof(who), "between %s (%s) and %s (%s)", name, address,
                 t->tasks[other].name, t->tasks[other].address);
    else
        snprintf(who, sizeof(who), "from %s to %s (%s)", t->tasks[n_to > 0 ? other : task].name,
                 t->tasks[n_to > 0 ? task : other].name, t->tasks[n_to > 0 ? task : other].address);
    judge_add(f->j, topic->severity, topic->what, task, other,
              topic->has_reach ? reach_remedy[state] : topic->remedy, "%s: %s %s%s%s", topic->what,
              topic->text, who, topic->has_reach ? " " : "", how);
}

/* Reports all failing pairs of the task, or the one with `other`, and clears them. */
static void attribute(struct faults *f, uint32_t task, uint32_t other)
{
    uint32_t n_to = 0, n_from = 0;
    uint8_t state = PREFLIGHT_UNTESTED;

    for (uint32_t i = 0; i < f->j->t->world; i++) {
        if (other != PREFLIGHT_NO_TASK && i != other)
            continue;
        if (is_bad(f, task, i)) {
            n_from++;
            if (state == PREFLIGHT_UNTESTED)
                state = state_of(f, task, i);
        }
        if (is_bad(f, i, task)) { /* preferred: what the others see of the task */
            uint8_t seen = state_of(f, i, task);

            /* a refused secret is certain; another one may see the same task as one that does not answer in time */
            state = n_to++ == 0 || seen == PREFLIGHT_DENIED ? seen : state;
        }
    }
    report(f, task, other, n_to, n_from, state);
    for (uint32_t i = 0; i < f->j->t->world; i++)
        if (other == PREFLIGHT_NO_TASK || i == other)
            clear(f, task, i);
}

static uint32_t n_present(const struct preflight_table *t)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < t->world; i++)
        n += t->rows[i].present;
    return n;
}

static void collect(struct faults *f)
{
    const struct preflight_table *t = f->j->t;

    for (uint32_t a = 0; a < t->world; a++)
        for (uint32_t b = 0; b < t->world; b++)
            if (a != b && t->rows[a].present && f->topic->fails(t, a, b)) {
                bool is_new = !is_bad_pair(f, a, b);

                f->bad[(size_t)a * t->world + b] = 1;
                f->partner[a] += is_new;
                f->partner[b] += is_new;
            }
}

/* Returns the task that more than half of the others cannot work with, PREFLIGHT_NO_TASK if none. An
 * absent task comes first: its pairs fail because of it. */
static uint32_t worst_task(const struct faults *f, uint32_t present)
{
    const struct preflight_table *t = f->j->t;
    uint32_t worst = PREFLIGHT_NO_TASK;

    for (uint32_t i = 0; i < t->world; i++) {
        if (f->partner[i] == 0)
            continue;
        if (!t->rows[i].present)
            return i;
        if (f->partner[i] >= 2 && 2 * f->partner[i] > present - 1 &&
            (worst == PREFLIGHT_NO_TASK || f->partner[i] > f->partner[worst]))
            worst = i;
    }
    return worst;
}

static bool all_pairs_fail(const struct faults *f, uint32_t present)
{
    for (uint32_t i = 0; i < f->j->t->world; i++)
        if (f->j->t->rows[i].present && f->partner[i] < present - 1)
            return false;
    return present > 2 && present == f->j->t->world;
}

static void judge_topic(struct faults *f)
{
    const struct preflight_table *t = f->j->t;
    uint32_t present = n_present(t), task;

    collect(f);
    if (all_pairs_fail(f, present)) {
        uint8_t state = state_of(f, 0, 1);

        judge_add(f->j, f->topic->severity, f->topic->what, PREFLIGHT_NO_TASK, PREFLIGHT_NO_TASK,
                  f->topic->has_reach ? reach_remedy[state] : f->topic->remedy,
                  "%s: between all tasks, %s%s%s", f->topic->what, f->topic->text,
                  f->topic->has_reach ? " " : "", f->topic->has_reach ? reach_text[state] : "");
        return;
    }
    while ((task = worst_task(f, present)) != PREFLIGHT_NO_TASK)
        attribute(f, task, PREFLIGHT_NO_TASK);
    for (uint32_t a = 0; a < t->world; a++)
        for (uint32_t b = a + 1; b < t->world; b++)
            if (is_bad_pair(f, a, b))
                attribute(f, a, b);
}

void judge_pairs(struct judged *j)
{
    size_t n = j->t->world;

    for (size_t i = 0; i < COUNT_OF(topics); i++) {
        struct faults f = { .j = j, .topic = &topics[i], .bad = calloc(n * n + 1, 1),
                            .partner = calloc(n + 1, sizeof(uint32_t)) };

        if (f.bad != NULL && f.partner != NULL)
            judge_topic(&f);
        else
            j->failed = true;
        free(f.bad);
        free(f.partner);
    }
}
