/* job_keys_data.c - the keys of /data. */
#include "conf/job_keys_priv.h"

#define FEATURE_AT(field_) offsetof(struct conf_feature, field_)
#define MAP_AT(field_) offsetof(struct conf_map, field_)

static const struct conf_word dtypes[] = {
    { "float32", TENSOR_F32 }, { "int64", TENSOR_I64 },  { "int32", TENSOR_I32 },
    { "uint8", TENSOR_U8 },    { "uint16", TENSOR_U16 }, { "uint32", TENSOR_U32 },
};
static const struct conf_word formats[] = {
    { "tfrecord", DATA_TFRECORD },
    { "csv", DATA_CSV },
    { "npy", DATA_NPY },
    { "tokens", DATA_TOKENS },
};
static const struct conf_word layouts[] = {
    { "channels_first", false },
    { "channels_last", true },
};
static const struct conf_word orientations[] = { { "stored", false }, { "exif", true } };
static const struct conf_word bad_records[] = { { "stop", false }, { "skip", true } };
static const struct conf_word map_ops[] = {
    { "random_resized_crop", DATA_RANDOM_RESIZED_CROP },
    { "random_crop", DATA_RANDOM_CROP },
    { "center_crop", DATA_CENTER_CROP },
    { "flip", DATA_FLIP },
    { "color_jitter", DATA_COLOR_JITTER },
    { "normalize", DATA_NORMALIZE },
};
static const struct conf_word map_whens[] = {
    { "training", CONF_MAP_TRAINING },
    { "evaluation", CONF_MAP_EVALUATION },
    { "always", CONF_MAP_ALWAYS },
};
static const struct conf_word caches[] = {
    { "none", DATA_CACHE_NONE },
    { "memory", DATA_CACHE_MEMORY },
    { "disk", DATA_CACHE_DISK },
};
static const struct conf_word remainders[] = {
    { "drop", false },
    { "pad", true },
};

/* clang-format off */
static const struct conf_key rows[] = {
{ "", "data", OBJECT, 0, REQUIRED,
  .doc = "Where the samples are and how they are read." },
{ "/data", "format", ENUM, AT(data.origin.format), WORDS(formats), .fallback = "tfrecord",
  .doc = "tfrecord: files of tf.train.Example, plain, gzip or zlib; csv: each line is a sample; npy: a NumPy array for "
         "each feature, where {feature} in the path is the name of the feature; tokens: raw uint16 or uint32, "
         "split into windows with the features \"tokens\" and \"labels\"; labels are shifted by one token." },
{ "/data", "train", PATH, AT(data.train), PATTERN, .instead = "mixture",
  .doc = "Files to train on, a path or a pattern with *, ? and [...]." },
{ "/data", "mixture", LIST, AT(data.origin.parts), ALLOCATED, .lo = 1, .hi = 64,
  .count = AT(data.origin.n_parts), .stride = sizeof(struct data_part), .instead = "train",
  .doc = "Several sets of files to train on, mixed by weight; an epoch has as many samples as all sets together, "
         "and a set that is exhausted starts again." },
{ "/data/mixture", "*", OBJECT,
  .doc = "One set of files." },
{ "/data/mixture/*", "files", PATH, offsetof(struct data_part, glob), PATTERN | REQUIRED,
  .doc = "A path or a pattern with *, ? and [...]." },
{ "/data/mixture/*", "weight", U32, offsetof(struct data_part, weight), .lo = 1, .hi = 1000000,
  .fallback = "1",
  .doc = "The number of samples from this set among as many samples as the sum of all weights." },
{ "/data", "eval", PATH, AT(data.eval), PATTERN | NULLABLE, .fallback = "null",
  .doc = "Files to evaluate on, a path or a pattern; null: no evaluation." },
{ "/data", "csv", OBJECT, .fallback = "{}", .when = { "format", BIT(DATA_CSV) },
  .doc = "The format of CSV files." },
{ "/data/csv", "header", BOOL, AT(data.origin.csv_header), .fallback = "true",
  .doc = "Whether the first line has the names of the columns; without it the names are 0, 1, 2 ..." },
{ "/data/csv", "delimiter", STRING, AT(samples.csv_delimiter),
  .doc = "The character between two fields; default: a comma." },
{ "/data", "features", MAP, AT(samples.features), REQUIRED, .lo = 1, .hi = CONF_MAX_FEATURES,
  .count = AT(samples.n_features), .stride = sizeof(struct conf_feature),
  .doc = "The features of each sample that are used, by their name in the sample." },
{ "/data/features", "*", OBJECT,
  .doc = "How the feature of this name is stored." },
{ "/data/features/*", "dtype", ENUM, FEATURE_AT(data.stored), REQUIRED, WORDS(dtypes),
  .doc = "In a tf.train.Example, uint8: raw bytes in a bytes list; float32: a float list or raw little-endian "
         "bytes; int64, int32: an int64 list; uint16, uint32: token files." },
{ "/data/features/*", "shape", LIST, FEATURE_AT(data.shape.dim), REQUIRED, .hi = TENSOR_MAX_RANK,
  .count = FEATURE_AT(data.shape.rank), .stride = sizeof(int64_t),
  .doc = "The dimensions of one sample without the batch; [] for a scalar." },
{ "/data/features/*/shape", "*", U64, .lo = 1, .hi = INT32_MAX,
  .doc = "The size of one dimension." },
{ "/data/features/*", "scale", F64, FEATURE_AT(data.scale), .min = -1e30, .max = 1e30,
  .fallback = "1",
  .doc = "Float graph inputs receive stored * scale + offset." },
{ "/data/features/*", "offset", F64, FEATURE_AT(data.offset), .min = -1e30, .max = 1e30,
  .fallback = "0",
  .doc = "Added after scale." },
{ "/data/features/*", "encoded", BOOL, FEATURE_AT(data.encoded), .fallback = "false",
  .doc = "uint8: a JPEG or PNG file in a bytes list, decoded and resized to the shape." },
{ "/data/features/*", "orientation", EITHER, FEATURE_AT(data.upright), WORDS(orientations),
  .fallback = "stored",
  .doc = "Of an encoded image. stored: the pixels as the file has them, as tf.io.decode_jpeg and torchvision read them; exif: "
         "turned as its Exif data state, as PIL.ImageOps.exif_transpose does." },
{ "/data/features/*", "layout", EITHER, FEATURE_AT(data.channels_last), WORDS(layouts),
  .fallback = "channels_first",
  .doc = "The order of the shape of an image: [channels, height, width] or [height, width, channels]." },
{ "/data/features/*", "pad", BOOL, FEATURE_AT(data.pad), .fallback = "false",
  .doc = "Whether a list with fewer values than the shape, or none at all, is padded." },
{ "/data/features/*", "pad_value", F64, FEATURE_AT(data.pad_value), .min = -1e30, .max = 1e30,
  .fallback = "0",
  .doc = "The value of the padding." },
{ "/data/features/*", "truncate", BOOL, FEATURE_AT(data.truncate), .fallback = "false",
  .doc = "Whether a list with more values than the shape is truncated." },
{ "/data/features/*", "length_of", STRING, FEATURE_AT(length_of), NULLABLE, .fallback = "null",
  .doc = "This int64 is not stored: it is the number of values that the named feature had." },
{ "/data/features/*", "segment_of", STRING, FEATURE_AT(segment_of), NULLABLE, .fallback = "null",
  .doc = "This int64 list is not stored: it is 1 for each item that the named feature has and 0 for the padding; "
         "with data.pack it is 1, 2, 3 ... for the records of the sample. The graph can compute an attention mask "
         "from it." },
{ "/data/features/*", "position_of", STRING, FEATURE_AT(position_of), NULLABLE, .fallback = "null",
  .doc = "This int64 list is not stored: it is the index of each item of the named feature; with data.pack the "
         "index restarts at 0 for each record." },
{ "/data/features/*", "row_lengths", STRING, FEATURE_AT(row_lengths), NULLABLE, .fallback = "null",
  .doc = "For a shape [rows, items, ...]: the feature stores rows of different lengths one after the other; the "
         "named feature, int64 [rows], has the number of items of each row. Rows are padded with pad_value." },
{ "/data/features/*", "row_splits", STRING, FEATURE_AT(row_splits), NULLABLE, .fallback = "null",
  .doc = "The same with a named feature, int64 [rows + 1], that has the first item of each row, and the end of "
         "the last row." },
{ "/data/features/*", "column", STRING, FEATURE_AT(data.column), NULLABLE, .fallback = "null",
  .doc = "For a CSV file: the first of as many columns as the shape has elements; null: the column with the name "
         "of the feature." },
{ "/data", "pack", STRING, AT(data.origin.pack), NULLABLE, .fallback = "null",
  .doc = "A feature of shape [T, ...]: a sample has as many records as fit into T items, one after the other; all "
         "stored features are lists of the same length as this one. The lengths of the records, in the order of "
         "the files, determine the records of each sample; an epoch has each record once, and as many steps as "
         "the packed samples need." },
{ "/data", "map", LIST, AT(samples.map), ALLOCATED, .hi = 64, .count = AT(samples.n_map),
  .stride = sizeof(struct conf_map), .fallback = "[]",
  .doc = "Operations on images, in this order; random values depend on seed, epoch and sample." },
{ "/data/map", "*", OBJECT,
  .doc = "One operation." },
{ "/data/map/*", "op", ENUM, MAP_AT(step.op), REQUIRED, WORDS(map_ops),
  .doc = "random_resized_crop: a random part, resized to the shape; random_crop: a random part of the shape's "
         "size; center_crop: the middle, resized; flip: exchanges left and right; color_jitter; normalize." },
{ "/data/map/*", "feature", STRING, MAP_AT(feature), REQUIRED,
  .doc = "The feature of data.features that is the image." },
{ "/data/map/*", "when", ENUM, MAP_AT(when), WORDS(map_whens),
  .doc = "When the operation applies; default: normalize always, center_crop in evaluation, random operations in "
         "training." },
{ "/data/map/*", "min_area", F64, MAP_AT(step.scale[0]), ABOVE_MIN, .max = 1, .fallback = "0.08",
  .when = { "op", BIT(DATA_RANDOM_RESIZED_CROP) },
  .doc = "The smallest share of the image's area." },
{ "/data/map/*", "max_area", F64, MAP_AT(step.scale[1]), ABOVE_MIN, .max = 1, .fallback = "1",
  .when = { "op", BIT(DATA_RANDOM_RESIZED_CROP) },
  .doc = "The largest share of the image's area." },
{ "/data/map/*", "min_ratio", F64, MAP_AT(step.ratio[0]), .min = 0.001, .max = 1000,
  .fallback = "0.75", .when = { "op", BIT(DATA_RANDOM_RESIZED_CROP) },
  .doc = "The smallest width of the part divided by its height." },
{ "/data/map/*", "max_ratio", F64, MAP_AT(step.ratio[1]), .min = 0.001, .max = 1000,
  .fallback = "1.3333333333333333", .when = { "op", BIT(DATA_RANDOM_RESIZED_CROP) },
  .doc = "The largest width of the part divided by its height." },
{ "/data/map/*", "padding", U32, MAP_AT(step.padding), .hi = 65500, .fallback = "0",
  .when = { "op", BIT(DATA_RANDOM_CROP) },
  .doc = "Black pixels that are added around the image before the part is chosen." },
{ "/data/map/*", "fraction", F64, MAP_AT(step.fraction), ABOVE_MIN, .max = 1, .fallback = "0.875",
  .when = { "op", BIT(DATA_CENTER_CROP) },
  .doc = "The share of the largest part in the middle that has the shape's proportions." },
{ "/data/map/*", "probability", F64, MAP_AT(step.probability), .max = 1, .fallback = "0.5",
  .when = { "op", BIT(DATA_FLIP) },
  .doc = "The probability that the image is flipped." },
{ "/data/map/*", "brightness", F64, MAP_AT(step.brightness), .max = 100, .fallback = "0",
  .when = { "op", BIT(DATA_COLOR_JITTER) },
  .doc = "Values are multiplied by a factor from 1 - brightness to 1 + brightness." },
{ "/data/map/*", "contrast", F64, MAP_AT(step.contrast), .max = 100, .fallback = "0",
  .when = { "op", BIT(DATA_COLOR_JITTER) },
  .doc = "The difference from the mean is multiplied by a factor from 1 - contrast to 1 + contrast." },
{ "/data/map/*", "saturation", F64, MAP_AT(step.saturation), .max = 100, .fallback = "0",
  .when = { "op", BIT(DATA_COLOR_JITTER) },
  .doc = "The difference from grey is multiplied by a factor from 1 - saturation to 1 + saturation." },
{ "/data/map/*", "hue", F64, MAP_AT(step.hue), .max = 0.5, .fallback = "0",
  .when = { "op", BIT(DATA_COLOR_JITTER) },
  .doc = "The hue is rotated by at most this share of the colour circle, in either direction." },
{ "/data/map/*", "mean", LIST, MAP_AT(step.mean), REQUIRED,
  .lo = 1, .hi = 4, .count = MAP_AT(n_mean),
  .stride = sizeof(double), .when = { "op", BIT(DATA_NORMALIZE) },
  .doc = "The mean of each channel, for pixels from 0 to 1; the graph receives (pixel - mean) / std." },
{ "/data/map/*/mean", "*", F64, .min = -1000, .max = 1000,
  .doc = "The mean of one channel." },
{ "/data/map/*", "std", LIST, MAP_AT(step.std), REQUIRED, .lo = 1, .hi = 4, .count = MAP_AT(n_std),
  .stride = sizeof(double), .when = { "op", BIT(DATA_NORMALIZE) },
  .doc = "The divisor of each channel." },
{ "/data/map/*/std", "*", F64, .min = 0.000001, .max = 1000,
  .doc = "The divisor of one channel." },
{ "/data", "shuffle", BOOL, AT(data.shuffle), .fallback = "true",
  .doc = "Whether every epoch has its own order, drawn from train.seed." },
{ "/data", "on_bad_record", EITHER, AT(data.origin.skip_bad), WORDS(bad_records),
  .fallback = "stop",
  .doc = "stop: a damaged or unreadable sample ends the run; skip: the next valid sample replaces it, and the "
         "skipped samples are counted." },
{ "/data", "cache", ENUM, AT(data.origin.cache), FREE, WORDS(caches), .fallback = "none",
  .doc = "memory: samples are kept in memory after the first epoch; disk: files are first copied to "
         "cache_directory, and decompressed." },
{ "/data", "cache_directory", PATH, AT(data.origin.cache_directory), FREE | REQUIRED,
  .when = { "cache", BIT(DATA_CACHE_DISK) },
  .doc = "A folder on a disk of this machine." },
{ "/data", "remainder", EITHER, AT(data.pad), WORDS(remainders), .fallback = "drop",
  .doc = "The samples at the end of an epoch that do not fill a global batch: drop skips them, pad trains on them "
         "and adds missing samples with weight 0." },
{ "/data", "threads", U32, AT(data.threads), FREE, .hi = 1024, .fallback = "0",
  .doc = "Decoding threads of a task; 0: depends on its number of processors." },
{ "/data", "prefetch", U32, AT(data.prefetch), FREE, .lo = 1, .hi = 1024, .fallback = "2",
  .doc = "Global batches that are decoded in advance." },
{ "/data", "index_directory", PATH, AT(data.origin.index_directory), FREE | NULLABLE,
  .fallback = "null",
  .doc = "The folder that keeps the indexes of the record files between runs; null: they are only in memory." },
};
/* clang-format on */

const struct conf_key_table conf_keys_data = { rows, COUNT_OF(rows) };
