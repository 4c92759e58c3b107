/* test_job_print.c - tests the printed job and the digest. Reads the files of config/, so it must
 * run in the root of the repository. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <glob.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/digest.h"
#include "base/err.h"
#include "conf/job.h"
#include "conf/job_print.h"
#include "conf/job_rows.h"

static struct conf *job_read(const char *path)
{
    struct conf *c = NULL;
    struct err err = { 0 };

    if (conf_read(path, &c, &err) != 0)
        fail_msg("%s (tests run in the repository's root)", err.text);
    return c;
}

/* Checks that the printed job, read from another path, is printed equally and has the same
 * digest. */
static void assert_round_trip(const struct conf *c)
{
    struct buf first = { 0 }, second = { 0 };
    struct conf *again;

    conf_print(c, &first);
    assert_false(first.failed);
    again = job_parsed("/elsewhere/printed.json", first.data);
    conf_print(again, &second);
    assert_string_equal(second.data, first.data);
    assert_string_equal(again->digest, c->digest);
    conf_free(again);
    buf_fini(&first);
    buf_fini(&second);
}

static void print_of_allowed_job_is_read_as_the_same_job(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(job_allowed); i++) {
        struct conf *c = job_patched(job_allowed[i]);

        assert_round_trip(c);
        conf_free(c);
    }
}

static void print_of_example_is_read_as_the_same_job(void **state)
{
    glob_t found;
    size_t n_jobs = 0;

    (void)state;
    assert_int_equal(glob("config/*.json", 0, NULL, &found), 0);
    assert_int_equal(glob("config/digits/*.json", GLOB_APPEND, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        struct conf *c;

        if (strcmp(found.gl_pathv[i], "config/job.schema.json") == 0 ||
            strstr(found.gl_pathv[i], "/cluster-") != NULL ||
            strstr(found.gl_pathv[i], "/grafana-") != NULL)
            continue;
        c = job_read(found.gl_pathv[i]);
        assert_round_trip(c);
        conf_free(c);
        n_jobs++;
    }
    assert_true(n_jobs >= 3);
    globfree(&found);
}

/* clang-format off */
static void print_contains_every_default(void **state)
{
    static const char expected[] =
        "{\n"
        "  \"name\": \"job\",\n"
        "  \"model\": {\n"
        "    \"onnx\": \"/jobs/net.onnx\",\n"
        "    \"inputs\": {\n"
        "      \"extra\": \"y\",\n"
        "      \"image\": \"x\"\n"
        "    },\n"
        "    \"loss\": {\n"
        "      \"type\": \"softmax_cross_entropy\",\n"
        "      \"logits\": \"z\",\n"
        "      \"labels\": \"label\",\n"
        "      \"weight\": 1,\n"
        "      \"label_smoothing\": 0,\n"
        "      \"class_weights\": [],\n"
        "      \"ignore_index\": null,\n"
        "      \"class_axis\": \"auto\"\n"
        "    },\n"
        "    \"more_losses\": [],\n"
        "    \"top_k\": 5,\n"
        "    \"metrics\": [],\n"
        "    \"weights\": null,\n"
        "    \"weights_names\": {},\n"
        "    \"weights_fresh\": [],\n"
        "    \"trainable\": [],\n"
        "    \"frozen\": [],\n"
        "    \"padding_idx\": {},\n"
        "    \"frozen_rows\": {},\n"
        "    \"tables\": {},\n"
        "    \"tied\": {},\n"
        "    \"batch_norm\": \"ask\"\n"
        "  },\n"
        "  \"data\": {\n"
        "    \"format\": \"tfrecord\",\n"
        "    \"train\": \"/jobs/train-*\",\n"
        "    \"eval\": null,\n"
        "    \"features\": {\n"
        "      \"extra\": {\n"
        "        \"dtype\": \"float32\",\n"
        "        \"shape\": [3],\n"
        "        \"scale\": 1,\n"
        "        \"offset\": 0,\n"
        "        \"encoded\": false,\n"
        "        \"orientation\": \"stored\",\n"
        "        \"layout\": \"channels_first\",\n"
        "        \"pad\": false,\n"
        "        \"pad_value\": 0,\n"
        "        \"truncate\": false,\n"
        "        \"length_of\": null,\n"
        "        \"segment_of\": null,\n"
        "        \"position_of\": null,\n"
        "        \"row_lengths\": null,\n"
        "        \"row_splits\": null,\n"
        "        \"column\": null\n"
        "      },\n"
        "      \"image\": {\n"
        "        \"dtype\": \"uint8\",\n"
        "        \"shape\": [1, 8, 8],\n"
        "        \"scale\": 1,\n"
        "        \"offset\": 0,\n"
        "        \"encoded\": false,\n"
        "        \"orientation\": \"stored\",\n"
        "        \"layout\": \"channels_first\",\n"
        "        \"pad\": false,\n"
        "        \"pad_value\": 0,\n"
        "        \"truncate\": false,\n"
        "        \"length_of\": null,\n"
        "        \"segment_of\": null,\n"
        "        \"position_of\": null,\n"
        "        \"row_lengths\": null,\n"
        "        \"row_splits\": null,\n"
        "        \"column\": null\n"
        "      },\n"
        "      \"label\": {\n"
        "        \"dtype\": \"int64\",\n"
        "        \"shape\": [],\n"
        "        \"scale\": 1,\n"
        "        \"offset\": 0,\n"
        "        \"encoded\": false,\n"
        "        \"orientation\": \"stored\",\n"
        "        \"layout\": \"channels_first\",\n"
        "        \"pad\": false,\n"
        "        \"pad_value\": 0,\n"
        "        \"truncate\": false,\n"
        "        \"length_of\": null,\n"
        "        \"segment_of\": null,\n"
        "        \"position_of\": null,\n"
        "        \"row_lengths\": null,\n"
        "        \"row_splits\": null,\n"
        "        \"column\": null\n"
        "      }\n"
        "    },\n"
        "    \"pack\": null,\n"
        "    \"map\": [],\n"
        "    \"shuffle\": true,\n"
        "    \"on_bad_record\": \"stop\",\n"
        "    \"cache\": \"none\",\n"
        "    \"remainder\": \"drop\",\n"
        "    \"threads\": 0,\n"
        "    \"prefetch\": 2,\n"
        "    \"index_directory\": null\n"
        "  },\n"
        "  \"train\": {\n"
        "    \"seed\": 0,\n"
        "    \"steps\": 100,\n"
        "    \"global_batch_size\": 64,\n"
        "    \"lanes\": 0,\n"
        "    \"precision\": \"float32\",\n"
        "    \"clip_norm\": 0,\n"
        "    \"clip_value\": 0,\n"
        "    \"eval_every_epochs\": 0,\n"
        "    \"log_every_steps\": 10,\n"
        "    \"deadline_seconds\": 30,\n"
        "    \"grace_seconds\": 8\n"
        "  },\n"
        "  \"elastic\": {\n"
        "    \"min_world\": 0,\n"
        "    \"rejoin_seconds\": 10,\n"
        "    \"balance\": \"auto\",\n"
        "    \"balance_gain\": 0.1,\n"
        "    \"balance_seconds\": 60,\n"
        "    \"spare\": \"off\"\n"
        "  },\n"
        "  \"detection\": {\n"
        "    \"silent_seconds\": 1.2,\n"
        "    \"stuck_factor\": 10\n"
        "  },\n"
        "  \"preflight_seconds\": 0,\n"
        "  \"health\": {\n"
        "    \"check_gradients\": true,\n"
        "    \"check_weights_every_steps\": 100,\n"
        "    \"non_finite\": \"stop\",\n"
        "    \"advice\": {\n"
        "      \"reduce_share\": 0.2,\n"
        "      \"data_share\": 0.1,\n"
        "      \"h2d_ms\": 5,\n"
        "      \"device_use\": 0.7,\n"
        "      \"lane_spread\": 1.25,\n"
        "      \"window_steps\": 50,\n"
        "      \"window_seconds\": 10,\n"
        "      \"repeat_seconds\": 600\n"
        "    }\n"
        "  },\n"
        "  \"optimizer\": {\n"
        "    \"type\": \"sgd\",\n"
        "    \"learning_rate\": 0.1,\n"
        "    \"weight_decay\": 0,\n"
        "    \"groups\": [],\n"
        "    \"average\": {\n"
        "      \"decay\": 0,\n"
        "      \"evaluate\": true,\n"
        "      \"export\": true\n"
        "    },\n"
        "    \"schedule\": {\n"
        "      \"type\": \"constant\",\n"
        "      \"warmup_steps\": 0\n"
        "    },\n"
        "    \"scaling\": {\n"
        "      \"rule\": \"none\"\n"
        "    }\n"
        "  },\n"
        "  \"communication\": {\n"
        "    \"implementation\": \"auto\",\n"
        "    \"topology\": \"auto\",\n"
        "    \"deterministic\": false,\n"
        "    \"shared_memory\": true,\n"
        "    \"token_file\": null,\n"
        "    \"tls\": null,\n"
        "    \"encrypt\": true,\n"
        "    \"data_port\": null\n"
        "  },\n"
        "  \"checkpoint\": {\n"
        "    \"directory\": null,\n"
        "    \"every_steps\": 0,\n"
        "    \"every_seconds\": 0,\n"
        "    \"max_to_keep\": 5,\n"
        "    \"restart_from_scratch\": false\n"
        "  },\n"
        "  \"evaluator\": {\n"
        "    \"metric\": \"loss\",\n"
        "    \"mode\": \"auto\",\n"
        "    \"keep_best\": true,\n"
        "    \"directory\": null\n"
        "  },\n"
        "  \"summary\": {\n"
        "    \"directory\": null\n"
        "  },\n"
        "  \"log\": {\n"
        "    \"level\": \"info\"\n"
        "  },\n"
        "  \"export\": {\n"
        "    \"onnx\": null,\n"
        "    \"safetensors\": null,\n"
        "    \"dtype\": \"float32\"\n"
        "  }\n"
        "}\n";
    const struct job_patch none[JOB_MAX_PATCHES] = { { NULL, NULL } };
    struct conf *c = job_patched(none);
    struct buf out = { 0 };

    (void)state;
    conf_print(c, &out);
    assert_string_equal(out.data, expected);
    buf_fini(&out);
    conf_free(c);
}

/* The canonical text must not change: a run can be resumed only with the digest of its start. */
static void digest_is_of_the_canonical_text(void **state)
{
    static const char expected[] =
        "{\n"
        "  'model': {\n"
        "    'onnx': 'net.onnx',\n"
        "    'inputs': {\n"
        "      'extra': 'y',\n"
        "      'image': 'x'\n"
        "    },\n"
        "    'loss': {\n"
        "      'type': 'softmax_cross_entropy',\n"
        "      'logits': 'z',\n"
        "      'labels': 'label',\n"
        "      'weight': 1,\n"
        "      'label_smoothing': 0,\n"
        "      'class_weights': [],\n"
        "      'ignore_index': null,\n"
        "      'class_axis': 'auto'\n"
        "    },\n"
        "    'more_losses': [],\n"
        "    'top_k': 5,\n"
        "    'metrics': [],\n"
        "    'weights': null,\n"
        "    'weights_names': {},\n"
        "    'weights_fresh': [],\n"
        "    'trainable': [],\n"
        "    'frozen': [],\n"
        "    'padding_idx': {},\n"
        "    'frozen_rows': {},\n"
        "    'tables': {},\n"
        "    'tied': {},\n"
        "    'batch_norm': 'ask'\n"
        "  },\n"
        "  'data': {\n"
        "    'format': 'tfrecord',\n"
        "    'train': 'train-*',\n"
        "    'eval': null,\n"
        "    'features': {\n"
        "      'extra': {\n"
        "        'dtype': 'float32',\n"
        "        'shape': [3],\n"
        "        'scale': 1,\n"
        "        'offset': 0,\n"
        "        'encoded': false,\n"
        "        'orientation': 'stored',\n"
        "        'layout': 'channels_first',\n"
        "        'pad': false,\n"
        "        'pad_value': 0,\n"
        "        'truncate': false,\n"
        "        'length_of': null,\n"
        "        'segment_of': null,\n"
        "        'position_of': null,\n"
        "        'row_lengths': null,\n"
        "        'row_splits': null,\n"
        "        'column': null\n"
        "      },\n"
        "      'image': {\n"
        "        'dtype': 'uint8',\n"
        "        'shape': [1, 8, 8],\n"
        "        'scale': 1,\n"
        "        'offset': 0,\n"
        "        'encoded': false,\n"
        "        'orientation': 'stored',\n"
        "        'layout': 'channels_first',\n"
        "        'pad': false,\n"
        "        'pad_value': 0,\n"
        "        'truncate': false,\n"
        "        'length_of': null,\n"
        "        'segment_of': null,\n"
        "        'position_of': null,\n"
        "        'row_lengths': null,\n"
        "        'row_splits': null,\n"
        "        'column': null\n"
        "      },\n"
        "      'label': {\n"
        "        'dtype': 'int64',\n"
        "        'shape': [],\n"
        "        'scale': 1,\n"
        "        'offset': 0,\n"
        "        'encoded': false,\n"
        "        'orientation': 'stored',\n"
        "        'layout': 'channels_first',\n"
        "        'pad': false,\n"
        "        'pad_value': 0,\n"
        "        'truncate': false,\n"
        "        'length_of': null,\n"
        "        'segment_of': null,\n"
        "        'position_of': null,\n"
        "        'row_lengths': null,\n"
        "        'row_splits': null,\n"
        "        'column': null\n"
        "      }\n"
        "    },\n"
        "    'pack': null,\n"
        "    'map': [],\n"
        "    'shuffle': true,\n"
        "    'on_bad_record': 'stop',\n"
        "    'remainder': 'drop'\n"
        "  },\n"
        "  'train': {\n"
        "    'seed': 0,\n"
        "    'steps': 100,\n"
        "    'global_batch_size': 64,\n"
        "    'lanes': 0,\n"
        "    'precision': 'float32',\n"
        "    'clip_norm': 0,\n"
        "    'clip_value': 0,\n"
        "    'eval_every_epochs': 0\n"
        "  },\n"
        "  'health': {\n"
        "    'non_finite': 'stop'\n"
        "  },\n"
        "  'optimizer': {\n"
        "    'type': 'sgd',\n"
        "    'learning_rate': 0.1,\n"
        "    'weight_decay': 0,\n"
        "    'groups': [],\n"
        "    'average': {\n"
        "      'decay': 0,\n"
        "      'evaluate': true,\n"
        "      'export': true\n"
        "    },\n"
        "    'schedule': {\n"
        "      'type': 'constant',\n"
        "      'warmup_steps': 0\n"
        "    },\n"
        "    'scaling': {\n"
        "      'rule': 'none'\n"
        "    }\n"
        "  },\n"
        "  'communication': {\n"
        "    'implementation': 'auto',\n"
        "    'deterministic': false\n"
        "  }\n"
        "}\n";
    const struct job_patch none[JOB_MAX_PATCHES] = { { NULL, NULL } };
    struct conf *c = job_patched(none);
    char *text = job_quoted(expected), hex[DIGEST_HEX_BYTES];
    uint8_t digest[DIGEST_BYTES];

    (void)state;
    digest_sha256(text, strlen(text), digest);
    digest_hex(digest, hex);
    assert_string_equal(c->digest, hex);
    free(text);
    conf_free(c);
}

static void digest_changes_only_with_keys_that_determine_the_result(void **state)
{
    static const struct {
        struct job_patch patches[JOB_MAX_PATCHES];
        bool is_same;
    } rows[] = {
        { P1("/name", "'other'"), true },
        { P1("/model/onnx", "'/other/folder/net.onnx'"), true },
        { P1("/data/train", "'/other/folder/train-*'"), true },
        { P1("/data/cache", "'memory'"), true },
        { P2("/data/cache", "'disk'", "/data/cache_directory", "'c'"), true },
        { P1("/data/on_bad_record", "'skip'"), false },
        { P1("/data/format", "'csv'"), false },
        { P2("/data/train", NULL, "/data/mixture", "[{'files':'train-*'}]"), false },
        { P1("/data/map", "[{'op':'flip','feature':'image'}]"), false },
        { P1("/data/features/image/encoded", "true"), false },
        { P1("/data/features/label/pad", "true"), false },
        { P1("/data/threads", "3"), true },
        { P1("/data/prefetch", "3"), true },
        { P1("/data/index_directory", "'i'"), true },
        { P1("/train/log_every_steps", "3"), true },
        { P1("/train/deadline_seconds", "3"), true },
        { P1("/train/grace_seconds", "3"), true },
        { P1("/elastic", "{'min_world':2,'rejoin_seconds':3}"), true },
        { P1("/elastic", "{'balance':'off','balance_gain':0.5,'balance_seconds':3}"), true },
        { P1("/elastic", "{'spare':'always'}"), true },
        { P1("/detection", "{'silent_seconds':3,'stuck_factor':3}"), true },
        { P1("/preflight_seconds", "3"), true },
        { P1("/health", "{'check_gradients':false,'check_weights_every_steps':3}"), true },
        { P1("/health", "{'non_finite':'stop'}"), true },
        { P1("/health", "{'advice':{'reduce_share':0.5,'lane_spread':0,'window_steps':9}}"), true },
        { P1("/health", "{'non_finite':'skip'}"), false },
        { P1("/health", "{'non_finite':'restore'}"), false },
        { P1("/log", "{'level':'debug'}"), true },
        { P1("/communication", "{'topology':'flat','shared_memory':false,'token_file':'t','data_port':7000}"), true },
        { P1("/checkpoint", "{'directory':'c','every_steps':3,'every_seconds':3,"
                            "'max_to_keep':3}"), true },
        { P1("/summary", "{'directory':'s'}"), true },
        { P1("/export", "{'onnx':'o'}"), true },
        { P1("/parameter_server", "{}"), false },
        /* a default that is given, and other forms of the same value */
        { P1("/train/seed", "0"), true },
        { P1("/train/lane_tree", "[]"), true },
        { P1("/optimizer/learning_rate", "1.0e-1"), true },
        { P1("/train/clip_norm", "-0"), true },
        { P1("/model/inputs", "{'extra':'y','image':'x'}"), true },
        { P1("/model/onnx", "'net2.onnx'"), false },
        { P1("/model/inputs", "{'image':'y','extra':'x'}"), false },
        { P1("/model/loss/logits", "'w'"), false },
        { P1("/model/loss/labels", "'extra'"), false },
        { P1("/model/frozen", "['w']"), false },
        { P1("/model/weights", "'w.safetensors'"), false },
        { P2("/model/weights", "'w'", "/model/weights_names", "{'*':'m.*'}"), false },
        { P2("/model/weights", "'w'", "/model/weights_fresh", "['head.*']"), false },
        { P1("/model/batch_norm", "'train'"), false },
        { P1("/model/padding_idx", "{'w':0}"), false },
        { P1("/model/frozen_rows", "{'w':[0]}"), false },
        { P1("/model/tables", "{'w':{'rows':9}}"), false },
        { P1("/data/train", "'train-1*'"), false },
        { P2("/data/eval", "'e'", "/train/eval_every_epochs", "0"), false },
        { P1("/data/shuffle", "false"), false },
        { P1("/data/remainder", "'pad'"), false },
        { P1("/data/features/image/dtype", "'float32'"), false },
        { P1("/data/features/image/shape", "[1, 64]"), false },
        { P1("/data/features/image/scale", "2"), false },
        { P1("/data/features/image/offset", "2"), false },
        { P1("/train/seed", "1"), false },
        { P1("/train/steps", "101"), false },
        { P2("/train/steps", NULL, "/train/epochs", "100"), false },
        { P1("/train/global_batch_size", "65"), false },
        { P2("/train/global_batch_size", NULL, "/train/batch_size_per_replica", "64"), false },
        { P1("/train/lanes", "2"), false },
        { P1("/train/lane_tree", "[2, 2]"), false },
        { P1("/train/precision", "'bfloat16'"), false },
        { P1("/train/precision", "'tf32'"), false },
        { P1("/train/precision", "'float16'"), false },
        { P1("/train/clip_norm", "2"), false },
        { P1("/optimizer/type", "'momentum'"), false },
        { P1("/optimizer/learning_rate", "0.10000000000000002"), false },
        { P1("/optimizer/weight_decay", "0.1"), false },
        { P1("/optimizer/schedule", "{'type':'cosine'}"), false },
        { P1("/optimizer/schedule", "{'warmup_steps':1}"), false },
        { P1("/optimizer/scaling", "{'rule':'linear','reference_batch_size':64}"), false },
        { P1("/optimizer/scaling", "{'rule':'square_root','reference_batch_size':64}"), false },
        { P1("/optimizer/groups", "[]"), true },
        { P1("/optimizer/groups", "[{'match':['*.bias'],'weight_decay':0.5}]"), false },
        { P1("/optimizer/average", "{'decay':0}"), true },
        { P1("/optimizer/average", "{'decay':0.9}"), false },
        { P1("/train/clip_value", "2"), false },
        { P1("/communication", "{'implementation':'nccl'}"), false },
    };
    const struct job_patch none[JOB_MAX_PATCHES] = { { NULL, NULL } };
    struct conf *base = job_patched(none);

    (void)state;
    assert_int_equal(strlen(base->digest), 64);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct conf *c = job_patched(rows[i].patches);

        if ((strcmp(c->digest, base->digest) == 0) != rows[i].is_same)
            fail_msg("row %zu: %s: %s", i, rows[i].patches[0].pointer,
                     rows[i].is_same ? "changes the digest" : "does not change the digest");
        conf_free(c);
    }
    conf_free(base);
}
/* clang-format on */

/* Of /parameter_server only the keys that decide where rows are or which bits result. */
static void digest_with_parameter_servers_changes_only_with_the_layout(void **state)
{
    static const struct {
        struct job_patch patches[JOB_MAX_PATCHES];
        bool is_same;
    } rows[] = {
        { P1("/parameter_server", "{'replicas':1}"), true },
        { P1("/parameter_server", "{'tables':'auto','min_shard_bytes':262144,'staleness':0}"), true },
        { P1("/parameter_server", "{'min_shard_bytes':1}"), false },
        { P1("/parameter_server", "{'tables':'none'}"), false },
        { P1("/parameter_server", "{'tables':['a']}"), false },
    };
    const struct job_patch base_patch[JOB_MAX_PATCHES] = P1("/parameter_server", "{}");
    struct conf *base = job_patched(base_patch);

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct conf *c = job_patched(rows[i].patches);

        assert_int_equal(strcmp(c->digest, base->digest) == 0, rows[i].is_same);
        conf_free(c);
    }
    conf_free(base);
}

static void parameter_server_section_gives_its_values_and_defaults(void **state)
{
    const struct job_patch none[JOB_MAX_PATCHES] = { { NULL, NULL } },
                           defaults[JOB_MAX_PATCHES] = P1("/parameter_server", "{}"),
                           listed[JOB_MAX_PATCHES] = P1("/parameter_server", "{'tables':['a','b*'],'replicas':1}");
    struct conf *c = job_patched(none);

    (void)state;
    assert_false(c->has_ps);
    assert_int_equal(c->ps.replicas, 0);
    conf_free(c);
    c = job_patched(defaults);
    assert_true(c->has_ps);
    assert_int_equal(c->ps.tables, PS_TABLES_AUTO);
    assert_int_equal(c->ps.min_shard_bytes, 262144);
    assert_int_equal(c->ps.replicas, 2);
    assert_int_equal(c->ps.dense, PS_DENSE_WORKERS);
    conf_free(c);
    c = job_patched(listed);
    assert_int_equal(c->ps.tables, PS_TABLES_LISTED);
    assert_int_equal(c->ps.n_patterns, 2);
    assert_string_equal(c->ps.patterns[1], "b*");
    conf_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(print_of_allowed_job_is_read_as_the_same_job),
        cmocka_unit_test(print_of_example_is_read_as_the_same_job),
        cmocka_unit_test(print_contains_every_default),
        cmocka_unit_test(digest_is_of_the_canonical_text),
        cmocka_unit_test(digest_changes_only_with_keys_that_determine_the_result),
        cmocka_unit_test(digest_with_parameter_servers_changes_only_with_the_layout),
        cmocka_unit_test(parameter_server_section_gives_its_values_and_defaults),
    };

    return cmocka_run_group_tests_name("conf/job_print", tests, NULL, NULL);
}
