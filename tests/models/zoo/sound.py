# SPDX-License-Identifier: BSD-3-Clause
"""Models of sound, of transformers."""

import torch

from tests.models.registry import Inputs
from tests.models.zoo.hub import SMALL, hub
from tests.models.zoo.inputs import WORDS, sound

_WAVES = SMALL | {
    "conv_dim": [32, 32, 32],
    "conv_kernel": [10, 3, 3],
    "conv_stride": [5, 2, 2],
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "mask_time_prob": 0.0,
}


def spoken() -> Inputs:
    """A text, and the spectrum that was spoken of it so far."""
    return {
        "input_ids": torch.randint(4, WORDS, (1, 10)),
        "decoder_input_values": torch.randn(1, 6, 16),
        "speaker_embeddings": torch.randn(1, 32),
    }


hub("wav2vec2", "Wav2Vec2ForCTC", "Wav2Vec2Config", _WAVES, sound)
hub("hubert", "HubertForCTC", "HubertConfig", _WAVES, sound)
hub("wavlm", "WavLMForCTC", "WavLMConfig", _WAVES, sound)
hub("speecht5", "SpeechT5ForTextToSpeech", "SpeechT5Config", {
    "vocab_size": WORDS, "hidden_size": 64, "encoder_layers": 2, "encoder_attention_heads": 4,
    "encoder_ffn_dim": 128, "decoder_layers": 2, "decoder_attention_heads": 4,
    "decoder_ffn_dim": 128, "num_mel_bins": 16, "speaker_embedding_dim": 32,
    "speech_decoder_prenet_units": 32, "speech_decoder_postnet_units": 32,
    "max_speech_positions": 64, "max_text_positions": 64,
    "speech_decoder_prenet_dropout": 0.0}, spoken)  # fmt: skip
hub("audio_spectrogram", "ASTForAudioClassification", "ASTConfig", {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
    "patch_size": 8, "frequency_stride": 8, "time_stride": 8, "max_length": 32, "num_mel_bins": 32,
    "num_labels": 16}, lambda: {"input_values": torch.randn(2, 32, 32)})  # fmt: skip
hub("encodec", "EncodecModel", "EncodecConfig", {
    "num_filters": 8, "upsampling_ratios": [4, 2], "hidden_size": 32, "codebook_dim": 32,
    "codebook_size": 32, "num_lstm_layers": 1, "target_bandwidths": [24.0],
    "sampling_rate": 24000}, lambda: {"input_values": torch.randn(1, 1, 800)})  # fmt: skip
hub("vits", "VitsModel", "VitsConfig", {
    "vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "ffn_dim": 64, "spectrogram_bins": 17, "flow_size": 16, "prior_encoder_num_flows": 1,
    "prior_encoder_num_wavenet_layers": 1, "posterior_encoder_num_wavenet_layers": 1,
    "upsample_initial_channel": 32, "upsample_rates": [4, 2], "upsample_kernel_sizes": [8, 4],
    "resblock_kernel_sizes": [3], "resblock_dilation_sizes": [[1, 3, 5]], "noise_scale": 0.0,
    "noise_scale_duration": 0.0, "use_stochastic_duration_prediction": False,
}, lambda: {"input_ids": torch.randint(4, WORDS, (1, 10))})  # fmt: skip
