#include "ps/budget.h"

void ps_budget_init(struct ps_budget *b, ps_memory_fn *decide, void *arg)
{
    *b = (struct ps_budget){ .decide = decide, .arg = arg };
    pthread_mutex_init(&b->lock, NULL);
}

void ps_budget_fini(struct ps_budget *b)
{
    pthread_mutex_destroy(&b->lock);
}

void ps_budget_begin(struct ps_budget *b, uint64_t held, uint32_t n_servers)
{
    pthread_mutex_lock(&b->lock);
    b->memory = (struct ps_memory){ .held = held, .n_servers = n_servers };
    pthread_mutex_unlock(&b->lock);
}

uint64_t ps_budget_held(struct ps_budget *b)
{
    uint64_t held;

    pthread_mutex_lock(&b->lock);
    held = b->memory.held;
    pthread_mutex_unlock(&b->lock);
    return held;
}

int ps_budget_report(struct ps_budget *b, uint64_t bytes, uint64_t memory, struct err *err)
{
    int rc = 0;

    pthread_mutex_lock(&b->lock);
    b->memory.planned += bytes;
    b->memory.planned_memory += memory;
    b->memory.n_reported++;
    if (b->decide != NULL)
        rc = b->decide(b->arg, &b->memory, err);
    pthread_mutex_unlock(&b->lock);
    return rc;
}

int ps_budget_grow(struct ps_budget *b, const char *table, uint64_t bytes, struct err *err)
{
    struct ps_memory *m = &b->memory, before;
    int rc = 0;

    pthread_mutex_lock(&b->lock);
    before = *m;
    m->planned += bytes;
    m->planned_memory += bytes;
    m->grown += bytes;
    m->growing = table;
    if (b->decide != NULL)
        rc = b->decide(b->arg, m, err);
    if (rc < 0)
        *m = before;
    b->wants_save = b->wants_save || rc > 0;
    m->growing = NULL;
    pthread_mutex_unlock(&b->lock);
    return rc < 0 ? rc : 0;
}

bool ps_budget_takes_save(struct ps_budget *b)
{
    bool wants;

    pthread_mutex_lock(&b->lock);
    wants = b->wants_save;
    b->wants_save = false;
    pthread_mutex_unlock(&b->lock);
    return wants;
}
