/* coding.c - see coding.h. */
#include "train/coding.h"

#include <string.h>

#include "base/err.h"
#include "ckpt/ckpt.h"
#include "code/code.h"
#include "train/agree_message.h"
#include "train/phases.h"
#include "train/task.h"

int coding_check(const struct train_opts *o, struct err *err)
{
    uint32_t groups = o->code.groups, lanes = o->lanes;

    if (o->code.kind == CODE_NONE || o->only_evaluates)
        return 0;
    if (phases_have_local(&o->run))
        return err_set(err, ERR_UNSUPPORTED,
                       "/communication/compression/code: compression does not support phases with "
                       "\"local_sgd\" (/train/phases): remove them, or use \"none\"");
    if (groups == 0 || (groups & (groups - 1)) != 0 || (lanes & (lanes - 1)) != 0 || groups > lanes)
        return err_set(err, ERR_INPUT,
                       "/communication/compression/groups: %u groups cannot have equal aligned blocks of %u "
                       "lanes: use a power of two of lanes that is at least the number of groups",
                       groups, lanes);
    if (code_keeps_residuals(o->code.kind) && groups < o->replicas)
        return err_set(err, ERR_INPUT,
                       "/communication/compression/groups: %s keeps a residual for each whole group, and %u groups "
                       "are too few for %u replicas: use a power of two that is at least %u",
                       code_name(o->code.kind), groups, o->replicas, o->replicas);
    return 0;
}

uint32_t coding_residual_groups(const struct train_opts *o)
{
    return code_keeps_residuals(o->code.kind) ? o->code.groups : 0;
}

int coding_check_resume(const struct train_opts *o, const struct ckpt_meta *meta, const char *path,
                        struct err *err)
{
    uint32_t groups = coding_residual_groups(o);
    bool is_other = groups > 0 && strcmp(meta->compression, "none") != 0 &&
                    strcmp(meta->compression, code_name(o->code.kind)) != 0;

    if (meta->residual_groups == 0 || (meta->residual_groups == groups && !is_other))
        return 0;
    return err_set(err, ERR_INPUT,
                   "%s has the residuals of %u groups of the code \"%s\", and the job has %u groups with residuals of "
                   "the code \"%s\": write the code and the groups of the checkpoint to "
                   "/communication/compression, or use another checkpoint directory",
                   path, meta->residual_groups, meta->compression, groups,
                   o->code.kind != CODE_NONE ? code_name(o->code.kind) : "none");
}

void coding_adopt(struct train *t, const struct agreement *a)
{
    const struct code_settings *code = &t->opts->code;
    bool on = code->when == CODE_ALWAYS;

    if (code->when == CODE_NETWORK)
        on = t->state.facts.coding == CODING_UNDECIDED ? a->uses_network
                                                       : t->state.facts.coding == CODING_ON;
    t->engine->group.codes = code->kind != CODE_NONE && on;
}

enum coding coding_fact(const struct train *t)
{
    if (t->opts->code.kind == CODE_NONE)
        return CODING_UNDECIDED;
    return t->engine->group.codes ? CODING_ON : CODING_OFF;
}

const char *coding_text(const struct train_opts *o, enum coding c)
{
    return c == CODING_UNDECIDED ? "" : c == CODING_OFF ? "none" : code_name(o->code.kind);
}

enum coding coding_from_text(const struct train_opts *o, const char *text)
{
    if (o->code.kind == CODE_NONE || text[0] == '\0')
        return CODING_UNDECIDED;
    return strcmp(text, "none") == 0 ? CODING_OFF : CODING_ON;
}
