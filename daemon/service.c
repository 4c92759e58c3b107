#include "daemon/service.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-daemon.h>

#include "base/clock.h"
#include "base/text.h"
#include "rdzv/rdzv.h"

enum {
    STATUS_MS = 1000,
    EXTEND_MS = 2000,      /* interval of EXTEND_TIMEOUT_USEC messages */
    EXTEND_BY_MS = 20000,  /* time requested by each; a stuck loop is detected after it */
    WATCHDOG_MS = 1000,    /* maximum interval of WATCHDOG; else a quarter of WATCHDOG_USEC */
    TEXT = 1024,
};

/* State of the service as the service manager knows it. */
static enum { STARTING, RUNNING, STOPPING } phase;
static struct {
    uint64_t status_ms, extend_ms, alive_ms;
    char status[TEXT]; /* last text that was sent */
    char next[TEXT];   /* text to be sent after STATUS_MS */
} sent;

/* Errors of sd_notify() are ignored: without the messages the task works as before. */
static void send_state(const char *state)
{
    (void)sd_notify(0, state);
}

void service_ready(void)
{
    if (phase != STARTING)
        return;
    phase = RUNNING;
    send_state("READY=1");
}

/* No effect during start and stop, when the READY after the reload would be wrong. */
void service_reloading(void)
{
    if (phase == RUNNING)
        (void)sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%llu",
                         (unsigned long long)(clock_ns() / 1000));
}

void service_reloaded(void)
{
    if (phase == RUNNING)
        send_state("READY=1");
}

void service_stopping(void)
{
    if (phase == STOPPING)
        return;
    phase = STOPPING;
    sent.extend_ms = 0;
    send_state("STOPPING=1");
}

static void send_status(uint64_t now)
{
    if (strcmp(sent.status, sent.next) == 0)
        return;
    snprintf(sent.status, sizeof(sent.status), "%s", sent.next);
    sent.status_ms = now;
    (void)sd_notifyf(0, "STATUS=%s", sent.status);
}

/* Sets sent.next to the text on a single line: the protocol treats text after a line break as
 * another message. */
static void set_status(const char *text)
{
    snprintf(sent.next, sizeof(sent.next), "%s", text);
    sent.next[text_utf8_cut(sent.next, strlen(sent.next))] = '\0';
    for (char *c = sent.next; *c != '\0'; c++)
        if ((unsigned char)*c < ' ')
            *c = ' ';
}

void service_status(const char *text)
{
    uint64_t now = clock_ms();

    set_status(text);
    if (sent.status[0] == '\0' || now - sent.status_ms >= STATUS_MS)
        send_status(now);
}

/* Sends READY before a successful end. systemd treats a service that exits with 0 without READY as
 * failed and restarts it; a job that is already complete would be restarted forever. */
void service_end(int exit_code, const char *text)
{
    if (exit_code == 0 || exit_code == 143)
        service_ready();
    set_status(text);
    send_status(clock_ms());
    service_stopping();
}

void service_set_limit(uint64_t own_ms)
{
    uint64_t usec = 0;

    if (sd_watchdog_enabled(0, &usec) > 0 && usec < 1000 * own_ms)
        (void)sd_notifyf(0, "WATCHDOG_USEC=%llu", (unsigned long long)(1000 * own_ms));
}

static uint64_t watchdog_ms(void)
{
    uint64_t usec = 0;

    if (sd_watchdog_enabled(0, &usec) <= 0)
        return 0;
    return usec / 4000 < WATCHDOG_MS ? usec / 4000 : WATCHDOG_MS;
}

void service_watchdog(bool training_ok)
{
    static uint64_t every_ms;
    static bool is_known;
    uint64_t now = clock_ms();

    if (!is_known) {
        every_ms = watchdog_ms();
        is_known = true;
    }
    if (!training_ok)
        return;
    if (every_ms > 0 && now - sent.alive_ms >= every_ms) {
        sent.alive_ms = now;
        send_state("WATCHDOG=1");
    }
    if (phase != RUNNING && now - sent.extend_ms >= EXTEND_MS) {
        sent.extend_ms = now;
        (void)sd_notifyf(0, "EXTEND_TIMEOUT_USEC=%d000", EXTEND_BY_MS);
    }
}

void service_status_text(const struct rdzv_progress *p, uint64_t generation, uint32_t present,
                         uint32_t world, uint64_t now_ms, char *out, size_t n)
{
    bool trains =
        p->step > 0 && (strcmp(p->phase, "train") == 0 || strcmp(p->phase, "evaluate") == 0);
    char steps[96] = "", group[96] = "";

    if (p->step > 0 && p->total_steps > 0)
        snprintf(steps, sizeof(steps), "step %llu of %llu (%llu %%)%s", (unsigned long long)p->step,
                 (unsigned long long)p->total_steps,
                 (unsigned long long)(100 * p->step / p->total_steps), trains ? "" : " done");
    if (world > 1 && generation > 0)
        snprintf(group, sizeof(group), ", generation %llu, %u of %u tasks present",
                 (unsigned long long)generation, present, world);
    else if (world > 1)
        snprintf(group, sizeof(group), ", %u of %u tasks present", present, world);
    if (trains)
        snprintf(out, n, "%s: %s, loss %.4g%s", p->phase, steps, p->loss, group);
    else
        snprintf(out, n, "%s for %llu s%s%s%s", p->phase,
                 (unsigned long long)(now_ms > p->phase_since_ms
                                          ? (now_ms - p->phase_since_ms) / 1000
                                          : 0),
                 steps[0] != '\0' ? ", " : "", steps, group);
    if (p->last_trouble[0] != '\0')
        snprintf(out + strlen(out), n - strlen(out), "; last trouble: %s", p->last_trouble);
}
