// Picks a token from each of some rows of logits: penalty, top-k, top-p, min-p, temperature, draw.
//
// A work-group has a row: MEMBERS times sixteen lanes, each of which takes whole chunks of the
// vocabulary. Nothing is sorted: a cut is a threshold, found by bisection over the bits of floats,
// and the draw walks the vocabulary in its order. Whatever a sum decides is added up in one order,
// so a row's token depends on nothing but its logits and its settings.
//
// Barriers are in the kernel itself, where all work-items of a group come by equally often.

#define CHUNK_TILES 64
#define CHUNK (CHUNK_TILES * TILE)
// Of a vocabulary.
#define PADDED ((vocab + TILE - 1) / TILE * TILE)
#define CHUNKS ((vocab + CHUNK - 1) / CHUNK)
#define UNUSABLE -1

typedef struct {
    // Twice the temperature's inverse, which may be 0 or infinite.
    float inverse;
    // top-p; from 1 on it is off.
    float top_p;
    // Half the logarithm of min-p; -inf where it is off.
    float least_below;
    float penalty, uniform;
    // top-k; 0 where it is off.
    int top_k;
    // Which row of logits.
    int row;
    // Where its seen tokens begin, and how many they are.
    int seen_from, seen_count;
} Settings;

#if VECTOR == 16
#define where(condition, a, b) select((lanes)(b), (lanes)(a), (condition))
#define WITHIN(p) vload16(0, (p))
#else
#define where(condition, a, b) ((condition) ? (a) : (b))
#define WITHIN(p) ((p)[LANE])
#endif

#define EACH_CHUNK (int chunk = member; chunk < CHUNKS; chunk += MEMBERS)
#define EACH_TILE_OF(chunk)                                                                        \
    (int at = (chunk) * CHUNK; at < min(((chunk) + 1) * CHUNK, PADDED); at += TILE)

// All lanes of a group get ``ALL`` of what ``JOIN`` makes of a value that each lane has.
#define MERGE(result, value, JOIN, ALL)                                                            \
    store_floats(value, shared + member * TILE);                                                   \
    barrier(CLK_LOCAL_MEM_FENCE);                                                                  \
    if (member == 0) {                                                                             \
        lanes joined = WITHIN(shared);                                                             \
        for (int other = 1; other < MEMBERS; other++)                                              \
            joined = JOIN(joined, WITHIN(shared + other * TILE));                                  \
        store_floats(joined, merged);                                                              \
    }                                                                                              \
    barrier(CLK_LOCAL_MEM_FENCE);                                                                  \
    result = ALL(vload16(0, merged));

#define PLUS(a, b) ((a) + (b))

// Floats in their order as integers in theirs, and back.
static inline int key_of(float x)
{
    const int bits = as_int(x);
    return bits ^ ((bits >> 31) & 0x7fffffff);
}

static inline float float_of(int key)
{
    return as_float(key ^ ((key >> 31) & 0x7fffffff));
}

static inline bool is_finite_number(float x)
{
    return (as_int(x) & 0x7f800000) != 0x7f800000;
}

// What is no finite number stays what it is; what exceeds the largest float is that.
static inline float penalized(float x, float penalty)
{
    if (!is_finite_number(x))
        return x;
    return clamp(x > 0.0f ? x / penalty : x * penalty, -FLT_MAX, FLT_MAX);
}

static inline lanes most_in(__global const float *x, int vocab, int member)
{
    lanes most = (lanes)(-INFINITY);
    for EACH_CHUNK
        for EACH_TILE_OF(chunk)
            most = fmax(most, WITHIN(x + at));
    return most;
}

// How many are NaN or infinite, but for the impossible, which are -inf.
static inline lanes unusable_in(__global const float *x, int vocab, int member)
{
    lanes count = (lanes)(0.0f);
    for EACH_CHUNK
        for EACH_TILE_OF(chunk)
            count += where(WITHIN(x + at) <= (lanes)(FLT_MAX), 0.0f, 1.0f);
    return count;
}

static inline lanes count_from(__global const float *x, float least, int vocab, int member)
{
    lanes count = (lanes)(0.0f);
    for EACH_CHUNK
        for EACH_TILE_OF(chunk)
            count += where(WITHIN(x + at) >= (lanes)(least), 1.0f, 0.0f);
    return count;
}

// The sum of those of some weights that are at least so much, and how many they are.
static inline lanes sum_from(
    __global const float *weights, float least, int vocab, int member, lanes *count)
{
    lanes sum = (lanes)(0.0f);
    *count = sum;
    for EACH_CHUNK {
        lanes part = (lanes)(0.0f);
        for EACH_TILE_OF(chunk) {
            const lanes weight = WITHIN(weights + at);
            part += where(weight >= (lanes)(least), weight, 0.0f);
            *count += where(weight >= (lanes)(least), 1.0f, 0.0f);
        }
        sum += part;
    }
    return sum;
}

// The smallest logit whose weight is at least so much.
static inline lanes least_in(
    __global const float *x, __global const float *weights, float least, int vocab, int member)
{
    lanes found = (lanes)(INFINITY);
    for EACH_CHUNK
        for EACH_TILE_OF(chunk) {
            const lanes smaller = fmin(found, WITHIN(x + at));
            found = where(WITHIN(weights + at) >= (lanes)(least), smaller, found);
        }
    return found;
}

// exp((x - most) / temperature) of those that are kept, and 0 of the others; sums of each chunk.
//
// Halves are subtracted: the difference of two floats can be more than a float.
static inline void weigh(
    __global const float *x, __global float *weights, __global float *partial, float least,
    float least_below, float most, float inverse, int vocab, int member)
{
    for EACH_CHUNK {
        lanes part = (lanes)(0.0f);
        for EACH_TILE_OF(chunk) {
            const lanes logit = WITHIN(x + at), below = 0.5f * logit - 0.5f * most;
            // 0 times infinity is not what the best one weighs.
            const lanes weight = where(below == (lanes)(0.0f), 1.0f, exp(below * inverse));
            const lanes kept = where(below >= (lanes)(least_below), weight, 0.0f);
            const lanes drawable = where(logit >= (lanes)(least), kept, 0.0f);
            store_floats(drawable, weights + at);
            part += drawable;
        }
        store_floats(part, partial + chunk * TILE);
    }
}

// The first of some weights with which the sum exceeds a target, else the last that is any.
//
// ``before`` is what the sum begins with, and becomes what it is before that weight.
static inline int reached(__local const float *weights, int count, float target, float *before)
{
    int last = 0;
    float sum = *before, before_last = sum;
    for (int i = 0; i < count; i++)
        if (weights[i] > 0.0f) {
            last = i;
            before_last = sum;
            sum += weights[i];
            if (sum > target)
                break;
        }
    *before = before_last;
    return last;
}

// Each group has ``weights`` of its own, ``[PADDED]``, and ``partial``, ``[CHUNKS][TILE]``; there
// are no more than MOST_CHUNKS.
KERNEL(MEMBERS * LANES, 1) pick_token(
    __global float *logits, __global float *weights, __global float *partial,
    __global const int *seen, __global const Settings *settings, __global int *tokens, int vocab)
{
    __local float shared[MEMBERS * TILE], merged[TILE], sums[MOST_CHUNKS], tiles[CHUNK_TILES];
    const int place = get_global_id(1), item = get_local_id(0), items = MEMBERS * LANES;
    const int member = item / LANES;
    const Settings given = settings[place];
    __global float *x = logits + (size_t)given.row * PADDED;
    weights += (size_t)place * PADDED;
    partial += (size_t)place * (CHUNKS * TILE);

    if (item == 0)
        for (int i = vocab; i < PADDED; i++)
            x[i] = -INFINITY;
    for (int i = item; i < given.seen_count; i += items) {
        const int token = seen[given.seen_from + i];
        x[token] = penalized(x[token], given.penalty);
    }
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);

    float most, unusable;
    MERGE(most, most_in(x, vocab, member), fmax, most_of_all)
    MERGE(unusable, unusable_in(x, vocab, member), PLUS, sum_of_all)
    // With nothing usable all that follows has no meaning, and no harm.

    float least = -FLT_MAX;
    if (given.top_k > 0) {
        int low = key_of(-INFINITY), high = key_of(most) + 1;
        float from_low = vocab, from_high = 0.0f;
        while ((uint)high - (uint)low > 1u && from_low != given.top_k && from_low - from_high > 1) {
            const int middle = hadd(low, high);
            float count;
            MERGE(count, count_from(x, float_of(middle), vocab, member), PLUS, sum_of_all)
            if (count >= given.top_k) {
                low = middle;
                from_low = count;
            } else {
                high = middle;
                from_high = count;
            }
        }
        least = fmax(least, float_of(low));
    }

    if (given.top_p < 1.0f) {
        weigh(x, weights, partial, least, -INFINITY, most, 2.0f, vocab, member);
        float total;
        lanes counts;
        MERGE(total, sum_from(weights, 0.0f, vocab, member, &counts), PLUS, sum_of_all)
        const float target = fmax(given.top_p * total, FLT_MIN);
        int low = as_int(FLT_MIN), high = as_int(1.0f) + 1;
        float from_low = vocab, from_high = 0.0f;
        while (high - low > 1 && from_low - from_high > 1) {
            const int middle = hadd(low, high);
            const float limit = as_float(middle);
            float sum, count;
            MERGE(sum, sum_from(weights, limit, vocab, member, &counts), PLUS, sum_of_all)
            MERGE(count, counts, PLUS, sum_of_all)
            if (sum >= target) {
                low = middle;
                from_low = count;
            } else {
                high = middle;
                from_high = count;
            }
        }
        MERGE(least, -least_in(x, weights, as_float(low), vocab, member), fmax, -most_of_all)
    }

    weigh(x, weights, partial, least, given.least_below, most, given.inverse, vocab, member);
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    for (int i = item; i < CHUNKS; i += items)
        sums[i] = sum_of_all(vload16(i, partial));
    barrier(CLK_LOCAL_MEM_FENCE);
    float total = 0.0f;
    for (int i = 0; i < CHUNKS; i++)
        total += sums[i];
    const float target = given.uniform * total;
    float before = 0.0f;
    const int first = reached(sums, CHUNKS, target, &before) * CHUNK_TILES;
    for (int i = item; i < CHUNK_TILES; i += items)
        tiles[i] = (first + i) * TILE < vocab ? sum_of_all(vload16(first + i, weights)) : 0.0f;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (item == 0) {
        const int tile = first + reached(tiles, CHUNK_TILES, target, &before);
        for (int i = 0; i < TILE; i++)
            merged[i] = weights[tile * TILE + i];
        const int token = tile * TILE + reached(merged, TILE, target, &before);
        tokens[place] = unusable == 0.0f && most >= -FLT_MAX ? token : UNUSABLE;
    }
}
