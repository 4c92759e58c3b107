/* group_final.c - the end of a task whose leader reports that the job is complete. The task looks for the
 * checkpoint of the last step before it ends with 0: a supervisor does not start it again, so the result
 * would be lost where the leader wrote it to a folder that the hosts do not share. */
#include "daemon/group_priv.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "daemon/complete.h"
#include "daemon/report.h"

enum { LOOK_MS = 200 /* between two looks: file systems of a network show new names after a while */ };

void group_end_complete(struct run *r, const char *text)
{
    const struct group_view *v = &r->group->view;
    struct group_final *f = &r->group->final;
    bool wrote_it = v->n_members > 0 && v->self == v->coordinator;

    if (r->s->train.checkpoint.directory == NULL || wrote_it) {
        run_end(r, EXIT_COMPLETE, text);
        return;
    }
    f->is_open = true;
    f->until_ms = clock_ms() + run_deadline_ms(r);
    snprintf(f->text, sizeof(f->text), "%s", text);
    snprintf(f->found, sizeof(f->found), "it did not answer");
    report_phase(r->report, "wait for the last checkpoint");
}

/* Ends the task without the checkpoint: it starts again, and looks again. */
static void give_up(struct run *r, const char *why)
{
    char text[sizeof(r->group->final.found) + 1024];

    snprintf(text, sizeof(text),
             "the leader reports that the job is complete, but the checkpoint of the last step is not in "
             "checkpoint.directory '%.500s' of this host (%s): %s; every host needs the same folder",
             r->s->train.checkpoint.directory, r->group->final.found, why);
    run_end(r, EXIT_RETRY, text);
}

void group_final_tick(struct run *r)
{
    struct group_final *f = &r->group->final;
    enum complete_state state = COMPLETE_NO;
    char why[64];
    struct err err;

    if (!f->is_open || r->exit.is_decided)
        return;
    if (f->check != NULL)
        state = complete_check_state(f->check, f->found, sizeof(f->found));
    if (state != COMPLETE_UNKNOWN) {
        complete_check_free(f->check);
        f->check = NULL;
    }
    snprintf(why, sizeof(why), "waited for %.1f s (train.deadline_seconds)",
             (double)run_deadline_ms(r) / 1e3);
    if (state == COMPLETE_YES)
        run_end(r, EXIT_COMPLETE, f->text);
    else if (r->stop.is_requested)
        give_up(r, "stopped meanwhile");
    else if (clock_ms() >= f->until_ms)
        give_up(r, why);
    else if (f->check == NULL && clock_ms() >= f->next_ms) {
        f->next_ms = clock_ms() + LOOK_MS;
        if (complete_check_start(r->s->conf, COMPLETE_FIND, &f->check, &err) < 0)
            log_warn("checkpoint", "%s", err.text);
    }
}
