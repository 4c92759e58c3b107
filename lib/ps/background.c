/* background.c - see background.h. */
#include "ps/background.h"

#include "base/thread.h"

static void end_use(struct ps_background *b)
{
    bool is_last;

    pthread_mutex_lock(&b->lock);
    is_last = --b->n_users == 0;
    pthread_mutex_unlock(&b->lock);
    if (!is_last)
        return;
    pthread_mutex_destroy(&b->lock);
    b->ops->free(b);
}

static void *background_main(void *arg)
{
    struct ps_background *b = arg;
    struct err err = { .text = "" };
    int rc = b->ops->run(b, &err);

    pthread_mutex_lock(&b->lock);
    b->state = rc == 0 ? PS_DONE_ALL : PS_DONE_NONE;
    b->err = err;
    pthread_mutex_unlock(&b->lock);
    end_use(b);
    return NULL;
}

void ps_background_start(struct ps_background *b, const struct ps_background_ops *ops,
                         const struct err *why)
{
    pthread_t thread;

    b->ops = ops;
    b->is_stopped = false;
    b->progress = 0;
    b->state = PS_DONE_SOME;
    b->n_users = 2;
    pthread_mutex_init(&b->lock, NULL);
    if (why != NULL)
        b->err = *why;
    if (why == NULL && thread_start(&thread, ops->what, background_main, b, &b->err) == 0) {
        pthread_detach(thread); /* it may hang with the storage, longer than its owner lives */
        return;
    }
    b->n_users = 1;
    b->state = PS_DONE_NONE;
}

void ps_background_stop(struct ps_background *b)
{
    if (b == NULL)
        return;
    pthread_mutex_lock(&b->lock);
    b->is_stopped = true;
    pthread_mutex_unlock(&b->lock);
    end_use(b);
}

void ps_background_status(struct ps_background *b, struct ps_background_status *out)
{
    pthread_mutex_lock(&b->lock);
    *out = (struct ps_background_status){ b->state, b->progress, b->err };
    pthread_mutex_unlock(&b->lock);
}

int ps_background_enter(struct ps_background *b, struct err *err)
{
    pthread_mutex_lock(&b->lock);
    if (!b->is_stopped)
        return 0;
    pthread_mutex_unlock(&b->lock);
    return err_set(err, ERR_CANCELED, "the work was abandoned");
}

void ps_background_leave(struct ps_background *b)
{
    pthread_mutex_unlock(&b->lock);
}

void ps_background_progress(struct ps_background *b)
{
    pthread_mutex_lock(&b->lock);
    b->progress++;
    pthread_mutex_unlock(&b->lock);
}
