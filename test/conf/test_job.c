/* test_job.c - tests the values that are read from a valid job, and the defaults. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <unistd.h>

#include "base/check.h"
#include "conf/job.h"
#include "conf/job_kit.h"

static void absent_key_has_the_documented_default(void **state)
{
    const struct job_patch none[JOB_MAX_PATCHES] = { { NULL, NULL } };
    struct conf *c = job_patched(none);

    (void)state;
    assert_string_equal(c->name, "job");
    assert_int_equal(c->objective.n_metrics, 0);
    assert_int_equal(c->model.n_frozen, 0);
    assert_null(c->data.eval);
    assert_true(c->data.shuffle);
    assert_int_equal(c->data.origin.cache, DATA_CACHE_NONE);
    assert_false(c->data.pad);
    assert_int_equal(c->data.threads, 0);
    assert_int_equal(c->data.prefetch, 2);
    assert_null(c->data.origin.index_directory);
    for (uint32_t i = 0; i < c->samples.n_features; i++) {
        assert_true(c->samples.features[i].data.scale == 1.0);
        assert_true(c->samples.features[i].data.offset == 0.0);
    }
    assert_int_equal(c->run.seed, 0);
    assert_int_equal(c->run.epochs, 0);
    assert_int_equal(c->train.batch_size_per_replica, 0);
    assert_int_equal(c->train.lanes, 0);
    assert_int_equal(c->run.precision, PLAN_FLOAT32);
    assert_true(c->run.clip_norm == 0.0);
    assert_int_equal(c->run.eval_every_epochs, 0);
    assert_int_equal(c->run.log_every_steps, 10);
    assert_true(c->train.deadline_seconds == 30.0);
    assert_true(c->train.grace_seconds == 8.0);
    assert_int_equal(c->elastic.min_world, 0);
    assert_true(c->elastic.rejoin_seconds == 10.0);
    assert_int_equal(c->elastic.balance, CONF_BALANCE_AUTO);
    assert_int_equal(c->elastic.spare, SPARE_OFF);
    assert_true(c->elastic.balance_gain == 0.1 && c->elastic.balance_seconds == 60);
    assert_true(c->detection.silent_seconds == 1.2);
    assert_true(c->health.stuck_factor == 10.0);
    assert_true(c->health.check_gradients);
    assert_int_equal(c->health.check_weights_every_steps, 100);
    assert_int_equal(c->health.non_finite, TRAIN_STOP);
    assert_int_equal(c->log.level, LOG_INFO);
    assert_true(c->optimizer.hyper.weight_decay == 0.0);
    assert_int_equal(c->optimizer.schedule.type, OPTIM_CONSTANT);
    assert_int_equal(c->optimizer.schedule.warmup_steps, 0);
    assert_int_equal(c->optimizer.scaling.rule, OPTIM_SCALING_NONE);
    assert_int_equal(c->communication.implementation, CONF_COMM_AUTO);
    assert_int_equal(c->communication.topology, CONF_TOPOLOGY_AUTO);
    assert_false(c->communication.deterministic);
    assert_true(c->communication.shared_memory);
    assert_null(c->communication.token_file);
    assert_null(c->checkpoint.directory);
    assert_int_equal(c->checkpoint.every_steps, 0);
    assert_true(c->checkpoint.every_seconds == 0.0);
    assert_int_equal(c->checkpoint.max_to_keep, 5);
    assert_null(c->summary.directory);
    assert_null(c->export.onnx);
    conf_free(c);
}

static void default_of_dependent_key_follows_from_the_other_key(void **state)
{
    const struct job_patch eval[] = P3("/data/eval", "'e'", "/optimizer/type", "'adamw'",
                                       "/optimizer/schedule", "{'type':'step','step_size':7}");
    const struct job_patch given[] =
        P3("/data/eval", "'e'", "/train/eval_every_epochs", "0", "/optimizer",
           "{'type':'adamw','learning_rate':1,"
           "'weight_decay':0}");
    const struct job_patch momentum[JOB_MAX_PATCHES] =
        P2("/optimizer/type", "'momentum'", "/optimizer/schedule", "{'type':'cosine'}");
    const struct job_patch short_deadline[JOB_MAX_PATCHES] = P1("/train/deadline_seconds", "2");
    struct conf *c = job_patched(eval);

    (void)state;
    assert_int_equal(c->run.eval_every_epochs, 1);
    assert_true(c->optimizer.hyper.weight_decay == 0.01);
    assert_true(c->optimizer.hyper.beta1 == 0.9);
    assert_true(c->optimizer.hyper.beta2 == 0.999);
    assert_true(c->optimizer.hyper.epsilon == 1e-8);
    assert_true(c->optimizer.hyper.momentum == 0.0); /* does not apply */
    assert_int_equal(c->optimizer.schedule.step_size, 7);
    assert_true(c->optimizer.schedule.gamma == 0.1);
    conf_free(c);

    c = job_patched(given);
    assert_int_equal(c->run.eval_every_epochs, 0);
    assert_true(c->optimizer.hyper.weight_decay == 0.0);
    conf_free(c);

    c = job_patched(short_deadline);
    assert_true(c->elastic.rejoin_seconds == 1.0);
    assert_true(c->detection.silent_seconds == 1.0);
    conf_free(c);

    c = job_patched(momentum);
    assert_true(c->optimizer.hyper.momentum == 0.9);
    assert_true(c->optimizer.hyper.beta1 == 0.0);
    assert_true(c->optimizer.hyper.weight_decay == 0.0);
    assert_true(c->optimizer.schedule.final_fraction == 0.0);
    conf_free(c);
}

static void optimizer_default_depends_on_its_type(void **state)
{
    static const struct {
        const char *type;
        double momentum, beta1, beta2, epsilon, trust, decay;
    } rows[] = {
        { "'sgd'", 0, 0, 0, 0, 0, 0 },
        { "'momentum'", 0.9, 0, 0, 0, 0, 0 },
        { "'adagrad'", 0, 0, 0, 1e-10, 0, 0 },
        { "'rmsprop'", 0, 0, 0.99, 1e-8, 0, 0 },
        { "'adam'", 0, 0.9, 0.999, 1e-8, 0, 0 },
        { "'adamw'", 0, 0.9, 0.999, 1e-8, 0, 0.01 },
        { "'adamax'", 0, 0.9, 0.999, 1e-8, 0, 0 },
        { "'lars'", 0.9, 0, 0, 0, 0.001, 0 },
        { "'lamb'", 0, 0.9, 0.999, 1e-6, 0, 0 },
        { "'lion'", 0, 0.9, 0.99, 0, 0, 0 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        const struct job_patch patches[JOB_MAX_PATCHES] =
            P2("/optimizer/type", rows[i].type, "/optimizer/groups",
               "[{'match':['a']},{'match':['b','c'],'weight_decay':0.5,'learning_rate_factor':2}]");
        struct conf *c = job_patched(patches);

        assert_true(c->optimizer.hyper.momentum == rows[i].momentum);
        assert_true(c->optimizer.hyper.beta1 == rows[i].beta1);
        assert_true(c->optimizer.hyper.beta2 == rows[i].beta2);
        assert_true(c->optimizer.hyper.epsilon == rows[i].epsilon);
        assert_true(c->optimizer.hyper.trust_coefficient == rows[i].trust);
        assert_true(c->optimizer.hyper.weight_decay == rows[i].decay);
        assert_int_equal(c->n_groups, 2);
        assert_true(c->groups[0].params.weight_decay == rows[i].decay);
        assert_true(c->groups[0].params.rate_factor == 1);
        assert_true(c->groups[0].params.adapts);
        assert_int_equal(c->groups[1].params.n_match, 2);
        assert_string_equal(c->groups[1].params.match[1], "c");
        assert_true(c->groups[1].params.weight_decay == 0.5);
        conf_free(c);
    }
}

static void job_with_all_keys_is_read(void **state)
{
    static const char quoted[] =
        "{'name':'n','model':{'onnx':'sub/./net.onnx','inputs':{'b':'in b','a':'in a'},"
        "'loss':{'type':'softmax_cross_entropy','logits':'z','labels':'y'},"
        "'metrics':['accuracy'],'frozen':['emb.*','head']},"
        "'data':{'train':'/abs//train-*','eval':'../eval','features':{"
        "'y':{'dtype':'int32','shape':[]},'b':{'dtype':'float32','shape':[4,5],'scale':0.5,"
        "'offset':-1},'a':{'dtype':'int64','shape':[2147483647]}},'shuffle':false,"
        "'cache':'memory','remainder':'pad','threads':3,'prefetch':4,'index_directory':'idx'},"
        "'train':{'seed':18446744073709551615,'epochs':6,'batch_size_per_replica':8,'lane_tree':[2,6],"
        "'precision':'float32','clip_norm':0.25,'eval_every_epochs':5,'log_every_steps':9,"
        "'deadline_seconds':2.5,'grace_seconds':1.5},"
        "'elastic':{'min_world':3,'rejoin_seconds':2},"
        "'detection':{'silent_seconds':0.5,'stuck_factor':20},"
        "'health':{'check_gradients':false,'check_weights_every_steps':7,'non_finite':'skip'},"
        "'optimizer':{'type':'adam','learning_rate':0.002,'beta1':0.8,'beta2':0.95,"
        "'epsilon':1e-6,'weight_decay':0.1,'schedule':{'type':'step','warmup_steps':11,"
        "'step_size':13,'gamma':0.5},'scaling':{'rule':'linear','reference_batch_size':32}},"
        "'communication':{'implementation':'cpu','topology':'flat','shared_memory':false,'token_file':'tok'},"
        "'checkpoint':{'directory':'ckpt','every_steps':14,'every_seconds':1.5,'max_to_keep':0},"
        "'summary':{'directory':'logs'},'log':{'level':'warn'},'export':{'onnx':'out.onnx'}}";
    char *text = job_quoted(quoted);
    struct conf *c = job_parsed("/jobs/./one/my.json", text);

    (void)state;
    assert_string_equal(c->path, "/jobs/./one/my.json");
    assert_string_equal(c->directory, "/jobs/one");
    assert_string_equal(c->name, "n");
    assert_string_equal(c->model.onnx, "/jobs/one/sub/net.onnx");
    assert_int_equal(c->model.n_inputs, 2);
    assert_string_equal(c->model.inputs[0].feature, "a"); /* sorted */
    assert_string_equal(c->model.inputs[0].input, "in a");
    assert_string_equal(c->model.inputs[1].feature, "b");
    assert_string_equal(c->model.inputs[1].input, "in b");
    assert_int_equal(c->objective.loss.type, TRAIN_LOSS_SOFTMAX_CROSS_ENTROPY);
    assert_string_equal(c->objective.loss.tensor, "z");
    assert_string_equal(c->objective.loss.labels, "y");
    assert_int_equal(c->objective.n_metrics, 1);
    assert_int_equal(c->objective.metrics[0], TRAIN_METRIC_ACCURACY);
    assert_int_equal(c->model.n_frozen, 2);
    assert_string_equal(c->model.frozen[0], "emb.*");
    assert_string_equal(c->model.frozen[1], "head");
    assert_string_equal(c->data.train, "/abs/train-*");
    assert_string_equal(c->data.eval, "/jobs/one/../eval");
    assert_int_equal(c->samples.n_features, 3);
    assert_string_equal(c->samples.features[0].data.name, "a");
    assert_int_equal(c->samples.features[0].data.stored, TENSOR_I64);
    assert_int_equal(c->samples.features[0].data.shape.rank, 1);
    assert_int_equal(c->samples.features[0].data.shape.dim[0], 2147483647);
    assert_string_equal(c->samples.features[1].data.name, "b");
    assert_int_equal(c->samples.features[1].data.stored, TENSOR_F32);
    assert_int_equal(c->samples.features[1].data.shape.rank, 2);
    assert_int_equal(c->samples.features[1].data.shape.dim[0], 4);
    assert_int_equal(c->samples.features[1].data.shape.dim[1], 5);
    assert_true(c->samples.features[1].data.scale == 0.5);
    assert_true(c->samples.features[1].data.offset == -1.0);
    assert_string_equal(c->samples.features[2].data.name, "y");
    assert_int_equal(c->samples.features[2].data.stored, TENSOR_I32);
    assert_int_equal(c->samples.features[2].data.shape.rank, 0);
    assert_false(c->data.shuffle);
    assert_int_equal(c->data.origin.cache, DATA_CACHE_MEMORY);
    assert_true(c->data.pad);
    assert_int_equal(c->data.threads, 3);
    assert_int_equal(c->data.prefetch, 4);
    assert_string_equal(c->data.origin.index_directory, "/jobs/one/idx");
    assert_true(c->run.seed == UINT64_MAX);
    assert_int_equal(c->run.epochs, 6);
    assert_int_equal(c->run.steps, 0);
    assert_int_equal(c->train.global_batch_size, 0);
    assert_int_equal(c->train.batch_size_per_replica, 8);
    assert_int_equal(c->train.lanes, 12); /* the product of lane_tree */
    assert_int_equal(c->train.n_lane_tree, 2);
    assert_true(c->train.lane_tree[0] == 2 && c->train.lane_tree[1] == 6);
    assert_true(c->run.clip_norm == 0.25);
    assert_int_equal(c->run.eval_every_epochs, 5);
    assert_int_equal(c->run.log_every_steps, 9);
    assert_true(c->train.deadline_seconds == 2.5);
    assert_true(c->train.grace_seconds == 1.5);
    assert_int_equal(c->elastic.min_world, 3);
    assert_true(c->elastic.rejoin_seconds == 2.0);
    assert_true(c->detection.silent_seconds == 0.5);
    assert_true(c->health.stuck_factor == 20.0);
    assert_false(c->health.check_gradients);
    assert_int_equal(c->health.check_weights_every_steps, 7);
    assert_int_equal(c->health.non_finite, TRAIN_SKIP);
    assert_int_equal(c->log.level, LOG_WARN);
    assert_int_equal(c->optimizer.type, OPTIM_ADAM);
    assert_true(c->optimizer.schedule.learning_rate == 0.002);
    assert_true(c->optimizer.hyper.beta1 == 0.8);
    assert_true(c->optimizer.hyper.beta2 == 0.95);
    assert_true(c->optimizer.hyper.epsilon == 1e-6);
    assert_true(c->optimizer.hyper.weight_decay == 0.1);
    assert_int_equal(c->optimizer.schedule.type, OPTIM_STEP);
    assert_int_equal(c->optimizer.schedule.warmup_steps, 11);
    assert_int_equal(c->optimizer.schedule.step_size, 13);
    assert_true(c->optimizer.schedule.gamma == 0.5);
    assert_int_equal(c->optimizer.scaling.rule, OPTIM_SCALING_LINEAR);
    assert_int_equal(c->optimizer.scaling.reference_batch_size, 32);
    assert_int_equal(c->communication.implementation, CONF_COMM_CPU);
    assert_int_equal(c->communication.topology, CONF_TOPOLOGY_FLAT);
    assert_false(c->communication.shared_memory);
    assert_string_equal(c->communication.token_file, "/jobs/one/tok");
    assert_string_equal(c->checkpoint.directory, "/jobs/one/ckpt");
    assert_int_equal(c->checkpoint.every_steps, 14);
    assert_true(c->checkpoint.every_seconds == 1.5);
    assert_int_equal(c->checkpoint.max_to_keep, 0);
    assert_string_equal(c->summary.directory, "/jobs/one/logs");
    assert_string_equal(c->export.onnx, "/jobs/one/out.onnx");
    conf_free(c);
    free(text);
}

static void remainder_pad_sets_a_bool_and_drop_clears_it(void **state)
{
    static const char *const words[] = { "'drop'", "'pad'" };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        const struct job_patch patches[JOB_MAX_PATCHES] = P1("/data/remainder", words[i]);
        struct conf *c = job_patched(patches);

        assert_int_equal(c->data.pad, i == 1);
        conf_free(c);
    }
}

static void word_of_enum_key_is_read_as_its_value(void **state)
{
    static const struct {
        const char *pointer, *value;
        size_t at;
        unsigned expected;
    } rows[] = {
        { "/optimizer/type", "'sgd'", offsetof(struct conf, optimizer.type), OPTIM_SGD },
        { "/optimizer/type", "'momentum'", offsetof(struct conf, optimizer.type), OPTIM_MOMENTUM },
        { "/optimizer/type", "'adam'", offsetof(struct conf, optimizer.type), OPTIM_ADAM },
        { "/optimizer/type", "'adamw'", offsetof(struct conf, optimizer.type), OPTIM_ADAMW },
        { "/data/cache", "'none'", offsetof(struct conf, data.origin.cache), DATA_CACHE_NONE },
        { "/data/cache", "'memory'", offsetof(struct conf, data.origin.cache), DATA_CACHE_MEMORY },
        { "/communication", "{'implementation':'auto'}",
          offsetof(struct conf, communication.implementation), CONF_COMM_AUTO },
        { "/communication", "{'implementation':'nccl'}",
          offsetof(struct conf, communication.implementation), CONF_COMM_NCCL },
        { "/optimizer/schedule", "{'type':'constant'}",
          offsetof(struct conf, optimizer.schedule.type), OPTIM_CONSTANT },
        { "/optimizer/schedule", "{'type':'cosine'}",
          offsetof(struct conf, optimizer.schedule.type), OPTIM_COSINE },
        { "/data/features/extra/dtype", "'uint8'",
          offsetof(struct conf, samples.features[0].data.stored), TENSOR_U8 },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const struct job_patch patches[JOB_MAX_PATCHES] = P1(rows[i].pointer, rows[i].value);
        struct conf *c = job_patched(patches);
        unsigned found;

        memcpy(&found, (const char *)c + rows[i].at, sizeof(found));
        if (found != rows[i].expected)
            fail_msg("%s: %s became %u", rows[i].pointer, rows[i].value, found);
        conf_free(c);
    }
}

static void path_of_job_file_makes_all_paths_absolute(void **state)
{
    const struct job_patch none[JOB_MAX_PATCHES] = { { NULL, NULL } };
    char *text = job_text(none), *here = getcwd(NULL, 0), expected[4200];
    static const struct {
        const char *path, *directory, *name;
    } rows[] = {
        { "job.json", "", "job" }, { "./a.json", "", "a" },
        { "x//y/b", "/x/y", "b" }, { "../c.json.json", "/..", "c.json" },
        { ".json", "", ".json" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct conf *c = job_parsed(rows[i].path, text);

        snprintf(expected, sizeof(expected), "%s%s", here, rows[i].directory);
        assert_string_equal(c->directory, expected);
        snprintf(expected, sizeof(expected), "%s%s/net.onnx", here, rows[i].directory);
        assert_string_equal(c->model.onnx, expected);
        assert_string_equal(c->name, rows[i].name);
        conf_free(c);
    }
    free(here);
    free(text);
}

static void pattern_below_a_folder_with_special_characters_quotes_the_folder(void **state)
{
    const struct job_patch with_eval[JOB_MAX_PATCHES] = P1("/data/eval", "'/absolute[1]/*'");
    char *text = job_text(with_eval), *here = getcwd(NULL, 0), expected[4200];
    struct conf *c = job_parsed("run[1]{?}/job.json", text);

    (void)state;
    snprintf(expected, sizeof(expected), "%s/run\\[1\\]\\{\\?\\}/train-*", here);
    assert_string_equal(c->data.train, expected);
    assert_string_equal(c->data.eval, "/absolute[1]/*");
    snprintf(expected, sizeof(expected), "%s/run[1]{?}/net.onnx", here);
    assert_string_equal(c->model.onnx, expected);
    conf_free(c);
    free(here);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(absent_key_has_the_documented_default),
        cmocka_unit_test(default_of_dependent_key_follows_from_the_other_key),
        cmocka_unit_test(optimizer_default_depends_on_its_type),
        cmocka_unit_test(job_with_all_keys_is_read),
        cmocka_unit_test(remainder_pad_sets_a_bool_and_drop_clears_it),
        cmocka_unit_test(word_of_enum_key_is_read_as_its_value),
        cmocka_unit_test(path_of_job_file_makes_all_paths_absolute),
        cmocka_unit_test(pattern_below_a_folder_with_special_characters_quotes_the_folder),
    };

    return cmocka_run_group_tests_name("conf/job", tests, NULL, NULL);
}
