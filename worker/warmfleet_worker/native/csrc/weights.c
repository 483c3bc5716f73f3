/* Packs matrices of weights into panels of sixteen outputs. */
#include "kernels.h"

#include <string.h>

/* A panel, by format. */
static const wf_layout PANELS[WF_FORMATS] = {
    [WF_WEIGHTS_BF16] = {2, 2 * WF_LANES * 2},
    [WF_WEIGHTS_F32] = {2, 2 * WF_LANES * 4},
};

static int64_t panels_of(int64_t outputs) { return (outputs + WF_LANES - 1) / WF_LANES; }

int64_t wf_packed_bytes(int format, int64_t outputs, int64_t inputs, int interleaved) {
    int64_t panels = interleaved ? 2 * panels_of(outputs / 2) : panels_of(outputs);
    return panels * wf_layout_bytes(PANELS[format], inputs);
}

/* One output's weights into lane `lane` of its panel. */
static void put_row(int format, const void *row, int64_t inputs, int64_t lane, void *panel) {
    switch (format) {
    case WF_WEIGHTS_F32:
        for (int64_t k = 0; k < inputs; k++) ((uint32_t *)panel)[k * WF_LANES + lane] = ((const uint32_t *)row)[k];
        return;
    case WF_WEIGHTS_BF16:
        for (int64_t k = 0; k < inputs; k++)
            ((uint16_t *)panel)[(k / 2 * WF_LANES + lane) * 2 + (k & 1)] = ((const uint16_t *)row)[k];
        return;
    }
}

void wf_pack(int format, const void *matrix, int64_t outputs, int64_t inputs, int interleaved, void *packed) {
    int64_t row_bytes = inputs * (format == WF_WEIGHTS_F32 ? 4 : 2), half = interleaved ? outputs / 2 : outputs;
    int64_t panel_bytes = wf_layout_bytes(PANELS[format], inputs);
    for (int part = 0; part < (interleaved ? 2 : 1); part++)
        for (int64_t n = 0; n < half; n++) {
            int64_t panel = interleaved ? 2 * (n / WF_LANES) + part : n / WF_LANES;
            put_row(format, (const uint8_t *)matrix + (part * half + n) * row_bytes, inputs, n % WF_LANES,
                    (uint8_t *)packed + panel * panel_bytes);
        }
}
