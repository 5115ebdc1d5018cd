// SPDX-License-Identifier: Apache-2.0
//
// The cases of keyfold_cuda_check. A case starts from a shape; the letters after it change one thing each.
#ifndef KF_TESTS_CUDA_CASES_H
#define KF_TESTS_CUDA_CASES_H

static kase shape(const char *name, int type, int B, int H, int Hkv, int Nq, int Nk, int D, int Dv) {
    kase c = {};
    c.name = name, c.type = type, c.B = B, c.H = H, c.Hkv = Hkv, c.Nq = Nq, c.Nk = Nk, c.D = D, c.Dv = Dv;
    c.left = c.right = -1;
    c.bias_type = FP32, c.lse = 1;
    return c;
}

static std::vector<kase> cases() {
    std::vector<kase> all;
    static char names[4096][64];
    static int used = 0;
    auto name = [&](const char *format, auto... x) {
        snprintf(names[used], sizeof names[0], format, x...);
        return (const char *)names[used++];
    };
    const char *type_names[] = {"fp32", "fp16", "bf16"};
    // Every head dimension, both dtypes; lengths around the tiles.
    const int dims[][2] = {{64, 64}, {128, 128}, {96, 96}, {192, 192}, {256, 256}, {192, 128},
                           {8, 8},   {40, 24},   {80, 80}, {112, 112}, {64, 128},  {256, 64}};
    for (int type = FP16; type <= BF16; type++)
        for (auto &d : dims)
            for (int causal = 0; causal < 2; causal++) {
                kase c = shape(name("grid %s D=%d Dv=%d causal=%d", type_names[type], d[0], d[1], causal), type, 2, 2,
                               1, 193, 257, d[0], d[1]);
                c.causal = causal;
                all.push_back(c);
                c.name = name("grid decode %s D=%d Dv=%d causal=%d", type_names[type], d[0], d[1], causal);
                c.Nq = causal ? 3 : 1, c.H = 4, c.Hkv = 1;
                all.push_back(c);
            }
    const int sizes[][2] = {{1, 1},      {1, 15},   {2, 16},    {16, 17},   {17, 1},   {63, 64},
                            {64, 63},    {65, 129}, {127, 128}, {128, 127}, {129, 65}, {300, 1000},
                            {1000, 300}, {5, 0},    {1, 4096},  {4, 1023}};
    for (auto &n : sizes)
        for (int D = 64; D <= 128; D += 64)
            for (int causal = 0; causal < 2; causal++) {
                kase c = shape(name("size Nq=%d Nk=%d D=%d causal=%d", n[0], n[1], D, causal), BF16, 1, 3, 3, n[0],
                               n[1], D, D);
                c.causal = causal;
                all.push_back(c);
            }
    // Masks and additions, on a prefill and on a decode shape.
    for (int decode = 0; decode < 2; decode++)
        for (int D = 64; D <= 128; D += 64) {
            auto add = [&](const char *what, auto change) {
                kase c = shape(name("%s %s D=%d", decode ? "decode" : "prefill", what, D), decode ? FP16 : BF16, 3, 8,
                               2, decode ? 2 : 200, 333, D, D);
                change(c);
                all.push_back(c);
            };
            add("gqa", [](kase &) {});
            add("causal", [](kase &c) { c.causal = 1; });
            add("window 31,0", [](kase &c) { c.left = 31, c.right = 0; });
            add("window 0,0", [](kase &c) { c.left = 0, c.right = 0; });
            add("window 100,7", [](kase &c) { c.left = 100, c.right = 7; });
            add("window left causal", [](kase &c) { c.left = 64, c.causal = 1; });
            add("lengths", [](kase &c) { c.lengths = LENGTHS_MIXED; });
            add("lengths 0 1 causal", [](kase &c) { c.lengths = LENGTHS_SHORT, c.causal = 1; });
            add("lengths hostile", [](kase &c) { c.lengths = LENGTHS_SHORT, c.hostile = HOSTILE_HIDDEN; });
            add("positions", [](kase &c) { c.positions = POSITIONS_SHUFFLED, c.causal = 1; });
            add("positions window", [](kase &c) { c.positions = POSITIONS_SHUFFLED, c.left = 20, c.right = 3; });
            add("alibi", [](kase &c) { c.alibi = 1; });
            add("alibi causal", [](kase &c) { c.alibi = 1, c.causal = 1; });
            add("softcap", [](kase &c) { c.softcap = 5; });
            add("sinks", [](kase &c) { c.sinks = 1; });
            add("sinks lengths 0", [](kase &c) { c.sinks = 1, c.lengths = LENGTHS_SHORT; });
            add("bias fp32 full", [](kase &c) { c.bias = FULL; });
            add("bias bf16 broadcast", [](kase &c) { c.bias = BROADCAST, c.bias_type = BF16; });
            add("bias fp16 heads causal", [](kase &c) { c.bias = HEADS, c.bias_type = FP16, c.causal = 1; });
            add("mask full", [](kase &c) { c.mask = FULL; });
            add("mask heads causal", [](kase &c) { c.mask = HEADS, c.causal = 1; });
            add("mask columns hostile", [](kase &c) { c.mask = BROADCAST, c.hostile = HOSTILE_HIDDEN; });
            add("query NaN", [](kase &c) { c.hostile = HOSTILE_QUERY; });
            add("scale", [](kase &c) { c.scale = 0.5f; });
            add("scale negative", [](kase &c) { c.scale = -0.25f; });
            add("fp32 output", [](kase &c) { c.o_fp32 = 1; });
            add("no lse", [](kase &c) { c.lse = 0; });
            add("bnhd", [](kase &c) { c.layout = LAYOUT_BNHD, c.causal = 1; });
            add("unaligned", [](kase &c) { c.layout = LAYOUT_ODD, c.causal = 1; });
            add("all", [](kase &c) {
                c.causal = 1, c.left = 150, c.lengths = LENGTHS_MIXED, c.alibi = 1, c.softcap = 20, c.sinks = 1,
                c.bias = FULL, c.mask = FULL;
            });
            add("repeat", [](kase &c) { c.causal = 1; });
        }
    // The seeds' shapes, full size.
    const int seeds[][6] = {{1, 8, 8, 512, 64, 1},   {1, 8, 8, 2048, 64, 1},    {4, 32, 32, 4096, 128, 1},
                            {1, 8, 8, 8192, 128, 1}, {2, 16, 16, 16384, 64, 1}, {2, 16, 16, 4096, 64, 1}};
    for (auto &n : seeds)
        for (int causal = 0; causal < 2; causal++) {
            kase c = shape(name("seed %d,%d,%d,%d causal=%d", n[0], n[1], n[3], n[4], causal), BF16, n[0], n[1], n[2],
                           n[3], n[3], n[4], n[4]);
            c.causal = causal;
            all.push_back(c);
        }
    all.push_back(shape("seed decode 1,32/32,8192,128 repeat", BF16, 1, 32, 32, 1, 8192, 128, 128));
    all.push_back(shape("seed decode 1,32/8,8192,128 repeat", BF16, 1, 32, 8, 1, 8192, 128, 128));
    all.push_back(shape("seed decode 16,32/8,8192,128", BF16, 16, 32, 8, 1, 8192, 128, 128));
    all.push_back(shape("seed decode 4 queries 2,32/8,8192,128", BF16, 2, 32, 8, 4, 8192, 128, 128));
    return all;
}

#endif
