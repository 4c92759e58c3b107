#include "daemon/netcheck_text.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/location.h"

enum { TEXT_BYTES = 320, CELL_BYTES = 48 };

static const char *const kinds[] = { [RACKS_RATE] = "rate", [RACKS_LATENCY] = "latency" };

static double mega(uint64_t rate)
{
    return (double)rate / 1e6;
}

/* The host of an address "host:port" or "[host]:port", which has no blank and no slash. */
static void host_of(const char *address, char out[TEXT_BYTES])
{
    const char *end = strrchr(address, ':');
    size_t n = end != NULL ? (size_t)(end - address) : strlen(address);
    bool has_brackets = n >= 2 && address[0] == '[' && address[n - 1] == ']';

    snprintf(out, TEXT_BYTES, "%.*s", (int)(has_brackets ? n - 2 : n), address + has_brackets);
}

static void describe(const struct netcheck *c, const struct racks_finding *x, char out[TEXT_BYTES])
{
    const char *task = c->tasks[x->task].name;
    bool is_host = x->other == RACKS_NONE;
    char who[2 * CELL_BYTES + 32];

    if (is_host)
        snprintf(who, sizeof(who), "the best path of %.*s", CELL_BYTES, task);
    else
        snprintf(who, sizeof(who), "the link between %.*s and %.*s", CELL_BYTES, task, CELL_BYTES,
                 c->tasks[x->other].name);
    if (x->kind == RACKS_RATE)
        snprintf(out, TEXT_BYTES, "%s carries %.3g MB/s, the median %.3g MB/s", who, mega(x->value),
                 mega(x->median));
    else
        snprintf(out, TEXT_BYTES, "a round trip of %s takes %.3g ms, of the median %.3g ms", who,
                 (double)x->value / 1e3, (double)x->median / 1e3);
}

static const char *remedy(const struct racks_finding *x)
{
    return x->kind == RACKS_RATE
               ? "look at cable, switch port, speed and errors of the interface (ethtool, ip -s link), other traffic"
               : "look at the path: route, virtual network, wireless, a busy processor (mtr, top)";
}

/* Writes the proposed TRAINERD_LOCATION of a task. Returns false if the racks do not show one. */
static bool location_of(const struct netcheck *c, uint32_t task, char out[TEXT_BYTES])
{
    char host[TEXT_BYTES], name[LOCATION_PART_BYTES + 1];

    if (c->racks.n_racks < 2 || c->racks.rack[task] == RACKS_NONE)
        return false;
    host_of(c->tasks[task].address, host);
    location_name(host, name); /* an IPv6 address has colons */
    snprintf(out, TEXT_BYTES, "zone0/rack%u/%s", c->racks.rack[task], name);
    return true;
}

/* ---- text ---- */

static void cell(const struct racks_pair *p, char out[CELL_BYTES])
{
    if (p->rate == 0)
        snprintf(out, CELL_BYTES, "failed");
    else if (p->rtt_us < 1000)
        snprintf(out, CELL_BYTES, "%uus %.3g", p->rtt_us, mega(p->rate));
    else
        snprintf(out, CELL_BYTES, "%.3gms %.3g", (double)p->rtt_us / 1e3, mega(p->rate));
}

static void add_table(const struct netcheck *c, struct buf *out)
{
    char text[CELL_BYTES];

    buf_printf(out, "%-14s", "from \\ to");
    for (uint32_t k = 0; k < c->n; k++)
        buf_printf(out, " %14.14s", c->tasks[k].name);
    buf_str(out, "\n");
    for (uint32_t i = 0; i < c->n; i++) {
        buf_printf(out, "%-14.14s", c->tasks[i].name);
        for (uint32_t k = 0; k < c->n; k++) {
            cell(&c->pairs[(size_t)i * c->n + k], text);
            buf_printf(out, " %14s", k == i ? "-" : text);
        }
        buf_str(out, "\n");
    }
    buf_printf(out, "shortest round trip, MB/s; median of the pairs: %.3g ms, %.3g MB/s\n",
               (double)c->racks.median_rtt_us / 1e3, mega(c->racks.median_rate));
}

void netcheck_text(const struct netcheck *c, struct buf *out)
{
    char text[TEXT_BYTES];

    add_table(c, out);
    for (uint32_t i = 0; i < c->racks.n_findings; i++) {
        describe(c, &c->racks.findings[i], text);
        buf_printf(out, "slow: %s; %s\n", text, remedy(&c->racks.findings[i]));
    }
    if (c->racks.n_findings == 0)
        buf_str(out, "no slow host and no slow link\n");
    if (c->racks.n_racks < 2) {
        buf_str(out, "racks: none visible\n");
        return;
    }
    buf_printf(out, "racks: %u\n", c->racks.n_racks);
    for (uint32_t i = 0; i < c->n; i++)
        if (location_of(c, i, text))
            buf_printf(out, "  %s: TRAINERD_LOCATION=%s\n", c->tasks[i].name, text);
}

/* ---- JSON ---- */

static void tasks_json(const struct netcheck *c, struct buf *out)
{
    char text[TEXT_BYTES];

    for (uint32_t i = 0; i < c->n; i++) {
        buf_str(out, i > 0 ? ",\n{\"name\": " : "{\"name\": ");
        buf_json(out, c->tasks[i].name);
        buf_str(out, ", \"address\": ");
        buf_json(out, c->tasks[i].address);
        buf_str(out, ", \"location\": ");
        buf_json(out, location_of(c, i, text) ? text : "");
        buf_str(out, ", \"to\": [");
        for (uint32_t k = 0; k < c->n; k++) {
            const struct racks_pair *p = &c->pairs[(size_t)i * c->n + k];

            buf_str(out, k > 0 ? ", " : "");
            if (k == i || p->rate == 0)
                buf_str(out, "null");
            else
                buf_printf(out, "{\"round_trip_us\": %u, \"bytes_per_second\": %llu}", p->rtt_us,
                           (unsigned long long)p->rate);
        }
        buf_str(out, "]}");
    }
}

void netcheck_json(const struct netcheck *c, struct buf *out)
{
    char text[TEXT_BYTES];

    buf_str(out, "{\"tasks\": [");
    tasks_json(c, out);
    buf_printf(
        out,
        "],\n\"median\": {\"round_trip_us\": %u, \"bytes_per_second\": %llu}, \"racks\": %u, \"findings\": [",
        c->racks.median_rtt_us, (unsigned long long)c->racks.median_rate, c->racks.n_racks);
    for (uint32_t i = 0; i < c->racks.n_findings; i++) {
        const struct racks_finding *x = &c->racks.findings[i];

        buf_printf(out, "%s{\"what\": \"%s\", \"task\": ", i > 0 ? ",\n" : "", kinds[x->kind]);
        buf_json(out, c->tasks[x->task].name);
        buf_str(out, ", \"other\": ");
        if (x->other != RACKS_NONE)
            buf_json(out, c->tasks[x->other].name);
        else
            buf_str(out, "null");
        describe(c, x, text);
        buf_str(out, ", \"text\": ");
        buf_json(out, text);
        buf_str(out, ", \"remedy\": ");
        buf_json(out, remedy(x));
        buf_str(out, "}");
    }
    buf_str(out, "]}\n");
}
