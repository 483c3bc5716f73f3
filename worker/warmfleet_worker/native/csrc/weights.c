/* Packs matrices of weights into panels of sixteen outputs. */
#include "int8_layout.h"
#include "kernels.h"

#include <string.h>

/* A panel, by format. */
static const wf_layout PANELS[WF_FORMATS] = {
    [WF_WEIGHTS_BF16] = {2, 2 * WF_LANES * 2},
    [WF_WEIGHTS_F32] = {2, 2 * WF_LANES * 4},
    [WF_WEIGHTS_INT8] = {INT8_GROUP, INT8_GROUP_BYTES},
};

static const int64_t ELEMENT_BYTES[WF_FORMATS] = {
    [WF_WEIGHTS_BF16] = 2, [WF_WEIGHTS_F32] = 4, [WF_WEIGHTS_INT8] = 1,
};

static int64_t panels_of(int64_t outputs) { return (outputs + WF_LANES - 1) / WF_LANES; }

int64_t wf_packed_bytes(int format, int64_t outputs, int64_t inputs, int interleaved) {
    int64_t panels = interleaved ? 2 * panels_of(outputs / 2) : panels_of(outputs);
    return panels * wf_layout_bytes(PANELS[format], inputs);
}

/* One output's weights into lane `lane` of its panel. */
static void put_row(int format, const void *row, const uint16_t *scales, int64_t inputs, int64_t lane, void *panel) {
    switch (format) {
    case WF_WEIGHTS_F32:
        for (int64_t k = 0; k < inputs; k++) ((uint32_t *)panel)[k * WF_LANES + lane] = ((const uint32_t *)row)[k];
        return;
    case WF_WEIGHTS_BF16: /* two inputs of an output stand together; beside a last odd one is zero */
        for (int64_t k = 0; k + 1 < inputs; k += 2)
            memcpy((uint16_t *)panel + (k * WF_LANES + 2 * lane), (const uint16_t *)row + k, 4);
        if (inputs & 1) ((uint16_t *)panel)[(inputs - 1) * WF_LANES + 2 * lane] = ((const uint16_t *)row)[inputs - 1];
        return;
    case WF_WEIGHTS_INT8:
        for (int64_t k = 0; k < inputs; k++) {
            uint8_t *group = (uint8_t *)panel + k / INT8_GROUP * INT8_GROUP_BYTES;
            group[wf_int8_value_at(k, lane)] = ((const uint8_t *)row)[k];
            if (k % INT8_BLOCK == 0) memcpy(group + wf_int8_scale_at(k, lane), scales + k / INT8_BLOCK, 2);
        }
        return;
    }
}

void wf_pack(int format, const void *matrix, const uint16_t *scales, int64_t first, int64_t rows, int64_t outputs,
             int64_t inputs, int interleaved, void *packed) {
    int64_t row_bytes = inputs * ELEMENT_BYTES[format], half = interleaved ? outputs / 2 : outputs;
    int64_t row_scales = (inputs + INT8_BLOCK - 1) / INT8_BLOCK;
    int64_t panel_bytes = wf_layout_bytes(PANELS[format], inputs);
    for (int64_t row = 0; row < rows; row++) {
        int64_t part = (first + row) / half, n = (first + row) % half;
        int64_t panel = interleaved ? 2 * (n / WF_LANES) + part : n / WF_LANES;
        put_row(format, (const uint8_t *)matrix + row * row_bytes, scales ? scales + row * row_scales : NULL, inputs,
                n % WF_LANES, (uint8_t *)packed + panel * panel_bytes);
    }
}
