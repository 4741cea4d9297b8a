// Descriptors of given keypoints in C++, with onnxruntime alone. How to build and run it: docs/guides/use_with.md.
//   describe MODEL.onnx IMAGE.pgm KEYPOINTS.txt > DESCRIPTORS.txt
// The model is written by `sdgmnet export onnx sdgmnet -o MODEL.onnx --input image`, the image is a binary PGM (8 bits).
// A line of KEYPOINTS.txt is `x y sigma angle`: pixel centres at integers, angle in radians, clockwise.
#include <onnxruntime_cxx_api.h>

#include <array>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

int main(int count, char** words) try {
    if (count != 4) throw std::runtime_error("usage: describe MODEL.onnx IMAGE.pgm KEYPOINTS.txt");
    std::ifstream file(words[2], std::ios::binary);
    std::string magic;
    int64_t width = 0, height = 0, largest = 0;
    file >> magic >> width >> height >> largest;
    if (magic != "P5" || largest != 255) throw std::runtime_error("the image must be a binary PGM of 8 bits");
    file.get();  // the line break before the pixels
    std::vector<float> image;
    for (std::istreambuf_iterator<char> pixel(file), end; pixel != end; ++pixel)
        image.push_back(static_cast<uint8_t>(*pixel) / 255.0f);
    if (static_cast<int64_t>(image.size()) != width * height) throw std::runtime_error("the image is truncated");
    std::ifstream list(words[3]);
    std::vector<float> keypoints{std::istream_iterator<float>(list), {}};
    if (!list.eof() || keypoints.size() % 4) throw std::runtime_error("a line of the keypoints must be x y sigma angle");

    Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "describe");
    Ort::Session session(env, words[1], Ort::SessionOptions{});
    auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
    auto tensor = [&](std::vector<float>& values, const std::vector<int64_t>& shape) {
        return Ort::Value::CreateTensor<float>(memory, values.data(), values.size(), shape.data(), shape.size());
    };
    std::array<Ort::Value, 2> inputs{tensor(image, {1, 1, height, width}),
                                     tensor(keypoints, {static_cast<int64_t>(keypoints.size() / 4), 4})};
    const char* input_names[] = {"image", "keypoints"};
    const char* output_names[] = {"descriptors"};
    auto outputs = session.Run(Ort::RunOptions{}, input_names, inputs.data(), inputs.size(), output_names, 1);
    auto shape = outputs[0].GetTensorTypeAndShapeInfo().GetShape();  // (N, 128)
    const float* value = outputs[0].GetTensorData<float>();
    for (int64_t row = 0; row < shape[0]; ++row)
        for (int64_t column = 0; column < shape[1]; ++column) std::cout << *value++ << (column + 1 < shape[1] ? ' ' : '\n');
} catch (const std::exception& error) {
    std::cerr << "describe: " << error.what() << '\n';
    return 2;
}
