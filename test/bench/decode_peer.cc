// decode_peer.cc - the records of bench_decode.c through the parser that protoc generates: one message, kept
// and parsed into again; of every list a byte is looked at. decode_peer FOLDER; the least of several rounds.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "decode_kinds.h"
#include "example.pb.h"

struct Record {
    const char *at;
    size_t n;
};

static std::vector<Record> frames(const std::string &file)
{
    std::vector<Record> out;

    for (size_t at = 0; at < file.size();) {
        uint64_t n;

        memcpy(&n, file.data() + at, sizeof(n));
        out.push_back({ file.data() + at + 12, n });
        at += n + 16;
    }
    return out;
}

static double round_of(const std::vector<Record> &records, const std::vector<std::string> &names,
                       uint32_t *sum)
{
    auto start = std::chrono::steady_clock::now();
    bench::Example example;

    for (const Record &r : records) {
        if (!example.ParseFromArray(r.at, static_cast<int>(r.n)))
            return -1;
        const auto &map = example.features().feature();
        for (const std::string &name : names) {
            auto found = map.find(name);

            if (found == map.end())
                return -1;
            const bench::Feature &f = found->second;
            const void *at = f.int64_list().value().data();

            if (f.kind_case() == bench::Feature::kBytesList)
                at = f.bytes_list().value(0).data();
            else if (f.kind_case() == bench::Feature::kFloatList)
                at = f.float_list().value().data();
            *sum += *static_cast<const uint8_t *>(at);
        }
    }
    std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
    return passed.count();
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    for (const decode_kind &k : decode_kinds) {
        std::ifstream in(std::string(argv[1]) + "/" + k.name + ".tfrecord", std::ios::binary);
        std::string file((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
        std::vector<Record> records = frames(file);
        std::vector<std::string> names;
        double least = 1e9;
        uint32_t sum = 0;

        if (k.n_bytes > 0)
            names.push_back("b");
        for (int i = 0; i < k.n_floats; i++)
            names.push_back("f" + std::to_string(i));
        for (int i = 0; i < k.n_ints; i++)
            names.push_back("i" + std::to_string(i));
        for (int i = 0; i < DECODE_ROUNDS; i++) {
            double seconds = round_of(records, names, &sum);

            if (seconds < 0 || records.empty()) {
                fprintf(stderr, "decode_peer: cannot read the records of %s\n", k.name);
                return 1;
            }
            least = seconds < least ? seconds : least;
        }
        printf("%s %.1f ns, sum %u\n", k.name, 1e9 * least / static_cast<double>(records.size()), sum);
    }
    return 0;
}
