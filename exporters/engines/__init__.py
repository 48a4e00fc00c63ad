"""Engine files: ONNX and TFLite, float and int8."""
